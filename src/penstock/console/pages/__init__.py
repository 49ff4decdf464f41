"""The rooms of the console; a new room is a new entry of `ROOMS`.

Rules that hold here:
- A room has a module of its name, with its `ROOM`. A module `ROOM_SUBJECT` adds pages to the room:
  it imports the `ROOM`, and stands in `MORE_PAGES`.
- Pages are shown in the order in which they are added: a room's own module first.
"""

from typing import Final

from penstock.console.pages import (
    access,
    access_decisions,
    access_matrix,
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
    views_form,
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
MORE_PAGES: Final = (views_form, access_matrix, access_decisions)
"""Modules that add pages to a room of another; being imported, they have."""
