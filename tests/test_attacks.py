"""Attacks on the server and its cache: scripted clients and upstreams, and nginx beside it where it knows what is right.

CASE=text runs the cases whose names contain it. ROUNDS=1000 tries more random forms, SEED= draws others. What the classes
are is said in docs/security.md and at the top of their modules in tests/attacks.
"""
import asyncio, importlib, re
import pytest
from attacks.tried import CASE, Tried
from peers import ROOT

CLASSES = ('floods', 'http3', 'refreshes', 'answers', 'forms', 'sharing', 'requests', 'downgrades', 'authorities', 'applications',
           'upstreams', 'purges')
DOCUMENT = ROOT / 'docs/security.md'


def documented():
    """Counts the cases of each class that the document claims."""
    rows = re.findall(r'^\| `(\w+)` \|.*\| ([\d,]+) \|', DOCUMENT.read_text(), re.M)
    return {name: int(count.replace(',', '')) for name, count in rows}


def test_the_readme_claims_no_more_cases_than_there_are():
    claimed = int(re.search(r'has ([\d,]+) cases of attackers', (ROOT / 'README.md').read_text())[1].replace(',', ''))
    # What `forms` tries are clients of many kinds, and no attack.
    assert claimed <= sum(count for name, count in documented().items() if name != 'forms') < claimed + 1000


@pytest.mark.parametrize('name', CLASSES)
def test_class(name):
    tried = Tried(name)
    asyncio.run(importlib.import_module(f'attacks.{name}').run(tried))
    assert not tried.wrong, tried.report()
    if tried.lacking and not tried.cases:
        pytest.skip(tried.lacking[0])
    assert tried.cases, 'no case was tried'
    if not CASE and not tried.lacking:
        claimed = documented()[name]
        assert claimed <= tried.cases, f'{DOCUMENT.name} says {claimed} cases, {tried.cases} were tried'
