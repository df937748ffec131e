"""A relay between a site and the coordinator, which can cut the connection or spoil what goes through."""

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from deployed import Deployment


class Relay:
    """Listens on a port of its own and passes everything on, except while it is told not to."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self.target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._until = 0.0
        self._spoils = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, seconds: float, spoil: bool = False) -> None:
        """Nothing goes through for so long: connections are closed, new ones refused, or answered with noise."""
        self._until, self._spoils = time.monotonic() + seconds, spoil
        with self._lock:
            for each in self._open:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    @property
    def left(self) -> float:
        """Seconds until it passes things on again."""
        return self._until - time.monotonic()

    def close(self) -> None:
        self._listener.close()
        self.cut(0.0)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if time.monotonic() < self._until:
                if self._spoils:
                    with suppress(OSError):
                        near.sendall(b"\x16\x03\x03\x00\x05noise")
                near.close()
                continue
            try:
                far = socket.create_connection(self.target, timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with self._lock:
            self._open -= {one, other}
        for each in (one, other):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Relayed(Deployment):
    """A federation whose sites reach the coordinator through relays."""

    def __init__(self, folder: Path, sites: int) -> None:
        super().__init__(folder, sites)
        self.relays = {number: Relay(self.fleet) for number in range(sites)}

    def address(self, number: int) -> str:
        return self.relays[number].address
