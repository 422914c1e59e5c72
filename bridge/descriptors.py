"""What stands behind descriptors 0, 1 and 2. Imports nothing that costs time: `connect` uses it."""

from __future__ import annotations

import os


def fill_closed_descriptors() -> None:
    """Open /dev/null where 0, 1 or 2 is closed, before anything else is opened.

    Otherwise the next socket or pipe would get that number: what is meant for stderr would go to a client, or
    a server started with an inherited stderr would hold a client's connection. A closed stdin then reads as
    ended, and writing to a closed stdout still fails.
    """
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number, which is `fd`. Inheritable, as these three always are.
            try:
                os.set_inheritable(os.open(os.devnull, mode), True)
            except OSError:
                return  # no /dev/null in a bare chroot
