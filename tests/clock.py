"""A wall clock that jumps, for the programs begun with it: Debian's faketime, as crates/testkit/src/clock.rs has it."""
import pathlib


class Clock:
    """It is right until it is set. Times of files and the steady clock stay as they are."""

    def __init__(self, folder, ahead=0):
        self.file = folder / 'clock'
        self.set(ahead)
        library = next(pathlib.Path('/usr/lib').glob('*/faketime/libfaketimeMT.so.1'))
        # Before a command.
        self.prefix = ['env', f'LD_PRELOAD={library}', f'FAKETIME_TIMESTAMP_FILE={self.file}', 'FAKETIME_NO_CACHE=1',
                       'FAKETIME_DONT_FAKE_MONOTONIC=1', 'NO_FAKE_STAT=1']

    def set(self, ahead):
        """How many seconds it is ahead of the right one."""
        self.ahead = ahead
        new = self.file.with_suffix('.new')
        new.write_text(f'{ahead:+}\n')
        new.rename(self.file)
