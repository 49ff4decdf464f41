"""`penstock user`: who is at Kafka, with which roles and password."""

from __future__ import annotations

import click

from penstock.cli.kafka.administration import (
    ask_password,
    made_password,
    open_officer,
    render_user,
    render_users,
    show_done,
)
from penstock.cli.output import json_option, show

generate_option = click.option(
    "--generate", is_flag=True, help="Generate a password, and write it to a file of its own."
)


@click.group("user")
def command() -> None:
    """Manage users at Kafka: their roles and passwords."""


@command.command("add")
@click.argument("name")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role; several times.")
@generate_option
@json_option
def add(name: str, roles: tuple[str, ...], generate: bool, as_json: bool) -> None:
    """Add a user; the password is asked for, or read from standard input."""
    with open_officer() as officer:
        if generate:
            with made_password(name) as (password, file):
                done = officer.add_user(name, password, roles)
            more = {"password_file": str(file)}
        else:
            password, more = ask_password(), {}
            done = officer.add_user(name, password, roles)
    show_done(as_json, done, f"added user {name}", more=more)


@command.command("password")
@click.argument("name")
@generate_option
@json_option
def set_password(name: str, generate: bool, as_json: bool) -> None:
    """Set a new password for a user."""
    with open_officer() as officer:
        if generate:
            with made_password(name) as (password, file):
                done = officer.set_password(name, password)
            more = {"password_file": str(file)}
        else:
            password, more = ask_password(), {}
            done = officer.set_password(name, password)
    show_done(as_json, done, f"set the password of {name}", more=more)


@command.command("delete")
@click.argument("name")
@json_option
def delete(name: str, as_json: bool) -> None:
    """Delete a user: nothing may be read any more, and no login works."""
    with open_officer() as officer:
        done = officer.delete_user(name)
    show_done(as_json, done, f"deleted user {name}")


@command.command("block")
@click.argument("name")
@json_option
def block(name: str, as_json: bool) -> None:
    """Block a user: connections to gateways end, and nothing may be read at Kafka."""
    with open_officer() as officer:
        done = officer.block_user(name)
    show_done(as_json, done, f"blocked user {name}")


@command.command("unblock")
@click.argument("name")
@json_option
def unblock(name: str, as_json: bool) -> None:
    """Let a user in again, with the roles they have."""
    with open_officer() as officer:
        done = officer.block_user(name, blocked=False)
    show_done(as_json, done, f"unblocked user {name}")


@command.command("assign")
@click.argument("name")
@click.argument("role")
@json_option
def assign(name: str, role: str, as_json: bool) -> None:
    """Assign ROLE to a user."""
    with open_officer() as officer:
        done = officer.assign_role(name, role)
    show_done(as_json, done, f"{name} has the role {role}")


@command.command("remove")
@click.argument("name")
@click.argument("role")
@json_option
def remove(name: str, role: str, as_json: bool) -> None:
    """Take ROLE from a user; whoever is reading by it stops."""
    with open_officer() as officer:
        done = officer.remove_role(name, role)
    show_done(as_json, done, f"{name} has the role {role} no more")


@command.command("show")
@click.argument("name")
@json_option
def show_user(name: str, as_json: bool) -> None:
    """Show the roles of a user, and what they allow."""
    with open_officer() as officer:
        found = officer.user_status(name)
    show(as_json, found.as_data(), lambda target: render_user(target, found))


@command.command("list")
@json_option
def list_users(as_json: bool) -> None:
    """List all users."""
    with open_officer() as officer:
        found = officer.users()
    show(as_json, [user.as_data() for user in found], lambda target: render_users(target, found))
