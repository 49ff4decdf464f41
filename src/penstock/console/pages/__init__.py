"""The rooms of the console, one module each; a new room is a new entry of `ROOMS`."""

from typing import Final

from penstock.console.pages import (
    access,
    audit,
    definitions,
    emergencies,
    guide,
    lineage,
    live,
    overview,
    purposes,
    requests,
    services,
    views,
)
from penstock.console.rooms import Room

ROOMS: Final[tuple[Room, ...]] = (
    overview.ROOM,
    definitions.ROOM,
    views.ROOM,
    lineage.ROOM,
    access.ROOM,
    emergencies.ROOM,
    live.ROOM,
    purposes.ROOM,
    requests.ROOM,
    services.ROOM,
    audit.ROOM,
    guide.ROOM,
)
