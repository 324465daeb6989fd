"""`omniq dashboard`: the pages, on this machine only unless a token guards them."""

from __future__ import annotations

import sys
from types import FrameType

import click

from omniq.cli.errors import EXIT_USAGE, CommandFailed
from omniq.cli.group import OmniqCommand
from omniq.cli.options import Whole
from omniq.cli.store import find_store, url_option
from omniq.errors import InvalidOption


@click.command(cls=OmniqCommand)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=Whole(0, 65535), default=8383, show_default=True, help="0: any that is free.")
@click.option(
    "--token", envvar="OMNIQ_DASHBOARD_TOKEN", help="Asked for at the door; or OMNIQ_DASHBOARD_TOKEN."
)
@click.option(
    "--allow-host", "names", multiple=True, metavar="NAME", help="A name browsers may call it by; repeatable."
)
@click.option("--allow-actions", is_flag=True, help="Let people retry, cancel, delete, pause and resume.")
@click.option("--show-args", is_flag=True, help="Show arguments; what is named like a secret stays hidden.")
@url_option
def dashboard(
    host: str,
    port: int,
    token: str | None,
    names: tuple[str, ...],
    allow_actions: bool,
    show_args: bool,
    url: str | None,
) -> None:
    """Show the store in a browser: read-only, and on this machine only, unless told otherwise."""
    try:
        import uvicorn

        from omniq.cli.listening import listen
        from omniq.web import Dashboard, Settings
        from omniq.web.guarding import check_token, is_loopback
    except ImportError:
        raise CommandFailed("the dashboard needs pip install 'omniq-tasks[web]'") from None
    try:
        check_token(token)
    except InvalidOption as exc:
        raise CommandFailed(str(exc), EXIT_USAGE) from None
    if not is_loopback(host) and token is None:
        raise CommandFailed(
            f"{host} can be reached by others; give a --token, or OMNIQ_DASHBOARD_TOKEN", EXIT_USAGE
        )
    hosts = (host, *names) if host not in ("0.0.0.0", "::") else names
    settings = Settings(token=token, hosts=hosts, allow_actions=allow_actions, show_args=show_args)
    app = Dashboard(find_store(url), settings)
    listening = listen(host, port, "--port 0")
    shown = f"[{host}]" if ":" in host else host
    sys.stdout.write(f"dashboard on http://{shown}:{listening.getsockname()[1]}/ (Ctrl-C ends it)\n")
    sys.stdout.flush()
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5, server_header=False)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.live.end_soon()
            super().handle_exit(sig, frame)

    Server(config).run(sockets=[listening])
