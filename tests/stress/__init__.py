"""Loads that an operator hopes never to see, at full size: `python3 -m tests.stress NAME`.

| module | what it does to a bridge |
|---|---|
| `flow.py` | clients that never read, a server that is frozen, floods |
| `connects.py` | a hundred thousand clients that come and go |
| `soak.py` | half an hour of everything at once, with a death a minute |
| `faults.py`, `entries.py` | an exception in each place where the event loop calls the bridge |

The normal test run has each of them at a small size: `test_*.py` here.
"""
