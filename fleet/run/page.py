"""What a run says of itself for its report, and the report at its end."""

import datetime as dt
import os
import platform
from pathlib import Path

import psutil

from fleet import __version__
from fleet.errors import FleetError
from fleet.profile.settings import Settings
from fleet.report.figure import Json
from fleet.report.html_report import write_report
from fleet.report.run_record import read_run

CPU_INFO = Path("/proc/cpuinfo")
NOT_TOLD = frozenset({"bootstrap_token", "command"})
"""A credential, and what may have one among its arguments; run directories are uploaded by CI."""


def about_run(settings: Settings, *, is_local: bool) -> Json:
    """Return options that are not the default, versions and machine; no credential."""
    return {
        "fleet_version": __version__,
        "python": platform.python_version(),
        "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "local_control_plane": is_local,
        "options": settings.model_dump(mode="json", exclude_defaults=True, exclude=set(NOT_TOLD)),
        "command": settings.command[0] if settings.command else "",
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
            "system": f"{platform.system()} {platform.release()}",
        },
    }


def _cpu() -> str:
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def report_of(settings: Settings, directory: Path) -> str:
    """Write the page of a run that is over; return where it is, or in a line why it is not there.

    Only the first process of a run writes one, and a pod of many writes none. What goes wrong is
    told and is no reason for a run to fail.
    """
    if settings.no_report or settings.shared is not None or settings.statefulset is not None:
        return ""
    try:
        return str(write_report(read_run(directory)))
    except FleetError as error:
        return f"no report: {error}"
