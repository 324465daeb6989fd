"""A report every night at two, Berlin time, by a cron line; tried out over a week of virtual time.

    python examples/nightly_report.py

Every process may save the schedule when it starts: saving it again changes nothing, and however many workers
run, a tick makes one task. `omniq schedules` shows it, pauses it or runs it now.
"""

from datetime import datetime
from zoneinfo import ZoneInfo

from loguru import logger

from omniq import Context, OmniQ
from omniq.testing import Kit

logger.disable("omniq")

q = OmniQ()
written: list[str] = []


@q.task(max_retries=5, retry_delay=600)
def report(ctx: Context, team: str) -> str:
    if team == "sales" and len(written) == 2 and ctx.attempt == 1:
        raise ConnectionError("the warehouse is being backed up")
    line = f"{team} report, attempt {ctx.attempt}"
    written.append(line)
    return line


def plan() -> None:
    q.schedule(
        "sales-report",
        report.call("sales"),
        cron="0 2 * * *",
        tz="Europe/Berlin",
        catch_up="latest",  # after a weekend without workers: one report, not three
        overlap="skip",
    )


def main() -> None:
    with Kit(q) as kit:
        plan()
        plan()
        [saved] = q.run(lambda storage: storage.schedules(), "")
        assert saved.next_at is not None
        local: datetime = saved.next_at.astimezone(ZoneInfo("Europe/Berlin"))
        print(f"next at {local:%H:%M} in Berlin")
        kit.advance(days=4)
        for line in written:
            print(line)


if __name__ == "__main__":
    main()
