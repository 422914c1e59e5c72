"""The history checker: many clients, a server that misbehaves on demand, and a judge of what came of it.

record.py   what is written down: clients' messages, the server's log, samples of the bridge
server.py   the server: does what each request says, and logs it before anybody can see an effect
session.py  its legacy session: subscriptions, levels, tasks, questions to its client
client.py   one connection: writes down what it sends before it is sent, and what comes when it comes
flavours.py what clients do, each with random numbers of its own
nemesis.py  kills and freezes the server's processes
run.py      a bridge, rounds of traffic, and a judgement after each
judge.py    history in, violations out; a pure function (with judge_client.py, judge_listens.py,
            judge_sessions.py)
breakages.py, breakages_sharing.py
            faults of the bridge, put into a copy of it, that the checker must find

python3 -m tests.history --requests 1000000 --seed 1 --listen unix
python3 -m tests.history --sharing isolated
.venv/bin/python -m tests.history.breakages
"""
