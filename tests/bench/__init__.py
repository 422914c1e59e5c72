"""The project's own benchmark: `python3 -m tests.bench`.

Real processes throughout. `load.py` makes the load (`lines.py` over sockets and pipes, `http.py` for peers
that serve HTTP, `fanout.py` for notifications, `messages.py` what goes over the wire), `echo.py` is the MCP
server that answers at once, `relay.py` moves bytes and does nothing else: the floor for anything that stands
between client and server in Python.
`endpoints.py` starts what is measured and reads its CPU and memory, `work.py` runs rounds and prints tables,
`starts.py` measures start times, `curves.py` how it scales, `guard.py` compares with what was recorded,
`peers.py` installs other bridges when asked to, `plot.py` draws.
"""
