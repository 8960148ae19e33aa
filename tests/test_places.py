"""`make run` where it is not easy: tests/places says where."""
import os, subprocess
from peers import ROOT


def test_make_run_where_it_is_not_easy(installed):
    done = subprocess.run([ROOT / 'tests/places'], env=os.environ | {'YOROZU_SITE': str(installed)}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    print(done.stdout)
    assert done.returncode == 0
