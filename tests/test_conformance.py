"""Public suites, where there is a copy of them, against their floors (conformance/floors)."""
import os, re, subprocess
import pytest
from peers import ROOT, YOROZU


@pytest.mark.parametrize('suite', ('nginx-tests', 'cache-tests'))
def test_floors_hold(suite):
    done = subprocess.run([ROOT / 'conformance' / suite], env=os.environ | {'YOROZU': YOROZU}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace')
    print(done.stdout)
    assert done.returncode == 0
    if why := re.search(r'^ignored +(.*)', done.stdout, re.M):
        pytest.skip(why[1])
