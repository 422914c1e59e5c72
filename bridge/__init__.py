"""mcp-bridge: one stdio MCP server, shared by many clients over a socket.

    clients                         core: no I/O, no clock                   server (child process)
    bytes in  --> LineFramer --+--> Downstream --+                     +--> stdin
                               |     Tables      +--> Outbox --> hub --+
    bytes out <-- hub <--------+--- Upstream <---+-- LineFramer <---------- stdout

| module | what it owns |
|---|---|
| `core/framing.py` | bytes to lines: limits, nothing searched twice |
| `core/jsonrpc.py`, `core/codec.py` | the envelope; bytes to messages: fast path, careful path, refusals |
| `core/glance.py` | nesting and ids, from bytes that are not decoded |
| `core/inflight.py`, `core/waiting.py` | upstream id to whose request; the queues of what is not sent yet |
| `core/subscriptions.py`, `core/listens.py` | which clients hold which upstream listen; how these look |
| `core/downstream.py`, `core/upstream.py` | the decisions for each line, from clients and from the server |
| `core/names.py` | names that are translated, and those that look like them |
| `core/era.py`, `core/seats.py` | the first words to a child; which child serves which era |
| `core/legacy.py` | one legacy session shared by many clients |
| `core/accounts.py`, `core/resources.py`, `core/levels.py`, `core/tasks.py` | what each of them holds of it |
| `core/isolated.py`, `core/pair*.py` | clients with a server process each |
| `core/lines.py`, `core/sorting.py` | bytes of a client to messages; who needs a process of its own |
| `core/swap.py` | replacing the servers while they are in use |
| `core/limits.py`, `core/frozen.py` | what the operator decides for the core; records that never change |
| `core/router.py` | the core's one entrance: a method for each thing that can happen |
| `core/tables.py`, `core/outbox.py`, `core/stats.py` | the state; the way out; the counters |
| `core/holdings.py` | how much is held, and for whom |
| `core/replay.py` | what is sent once more when its server has ended |
| `core/restart.py` | when a server is started, again, or given up |
| `core/pace.py` | how fast processes of single clients are started that end at once |
| `headstart.py`, `binding.py` | before all that is slow to import: listening, the guard, the server started |
| `acceptor.py` | all listeners of a bridge, from the first client to closing |
| `listener.py`, `socket_file.py`, `activation.py` | listening sockets: a path's, TCP's, systemd's |
| `peers.py`, `hangup.py` | who may connect; hang-ups told from half-closes |
| `client.py` | one connection |
| `child.py`, `process.py`, `guard.py` | the server process; nothing of it is left behind |
| `stdin.py`, `pump.py`, `outputs.py`, `pipes.py` | its pipes |
| `launcher.py` | with what each server process is started |
| `supervisor.py` | carries out what the restart policy decides |
| `pool.py`, `turns.py` | server processes of clients that have one each, and spare ones; who waits for one |
| `memory.py`, `news.py` | all buffers together, within bounds; what the core noticed, for the log |
| `hub.py` | joins all of these; the running bridge |
| `lifecycle.py`, `signals.py` | when it ends: signals, the service manager, being PID 1 |
| `notify.py`, `standing.py` | what systemd is told |
| `watchdog.py`, `reaper.py` | a loop that hangs; orphans |
| `insist.py` | steps that the event loop must not lose |
| `logs.py`, `warn.py`, `admin.py`, `tuning.py` | logs that never block; health; what is asked of the system |
| `cli.py`, `options.py`, `config.py`, `address.py`, `errors.py` | command line, settings, addresses, errors |
| `connect.py`, `demo*.py` | the other commands |

Imports point one way: cli -> hub -> shells -> core. This module imports nothing, so that
`mcp-bridge connect`, which a host starts at every session, starts in a few milliseconds.
"""

__version__ = "0.1.0"
