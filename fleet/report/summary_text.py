"""The summary in words and tables: whether it is valid first, then what happened, what is next."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fleet.errors import Exit
from fleet.metrics import Histogram, is_failure, is_refused_renewal, merged
from fleet.report.figures import AgentFigures, RequestFigures
from fleet.report.printed import table
from fleet.report.report import Outcome, RunFigures
from fleet.report.run_directory import SUMMARY, Request
from fleet.report.service_levels import is_asked, level_words, words

TOP_ROWS = 12
LABEL_COLUMNS = 10


def summary_text(
    figures: RunFigures,
    run_directory: Path | None = None,
    next_steps: Sequence[str] = (),
    report: str = "",
    *,
    has_colours: bool = False,
) -> str:
    """Return the summary for people. `next_steps` are commands or advice, one a line.

    `report` says where the page is. A terminal that `has_colours` shows in grey what was not
    judged.
    """
    blocks = [_verdict(figures, has_colours=has_colours), _facts(figures)]
    if figures.requests:
        blocks.append(_requests(figures.requests))
    closing = _closing(figures, run_directory, next_steps, report)
    if closing:
        blocks.append(closing)
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _verdict(figures: RunFigures, *, has_colours: bool) -> list[str]:
    """Say first what the rest is worth."""
    decided = figures.judgement()
    advice = ": do not use these figures" if decided.outcome is Outcome.INVALID else ""
    lines = [f"fleet run {figures.run_id}: {decided.outcome.words}{advice}"]
    if decided.outcome is not Outcome.FAIL:  # levels stand below, met or not, judged or not
        reasons = [each for each in decided.reasons if not each.startswith(NOT_JUDGED)]
        lines += [f"  - {reason}" for reason in reasons]
    if refused := refused_words(figures.requests):
        lines.append(f"  {refused}")
    for expectation in figures.expectations:
        mark = MARKS[expectation.is_met]
        detail = f" ({expectation.detail})" if expectation.detail else ""
        line = f"  {mark}: {expectation.name}{detail}"
        lines.append(_grey(line) if has_colours and expectation.is_met is None else line)
    return lines + [_grey(line) if has_colours else line for line in _unjudged(figures)]


def refused_words(requests: Iterable[RequestFigures | Request]) -> str:
    """Say how many requests the server refused, "" for none; renewals first, which cost nodes."""
    counts: list[float] = [0, 0]
    for each in requests:
        if each.code == 429:
            counts[not is_refused_renewal(each.verb, each.resource, each.code)] += each.count
    kinds = ("renewals of Leases", f"{'other ' if counts[0] else ''}requests")
    found = [f"{count:,} {kind}" for count, kind in zip(counts, kinds, strict=True) if count]
    return f"the API server REFUSED {' and '.join(found)} (429)" if found else ""


MARKS = {True: "met", False: "NOT MET", None: "not judged"}
NOT_JUDGED = f"{MARKS[None]}: "
GREY, PLAIN = "\x1b[90m", "\x1b[0m"


def _unjudged(figures: RunFigures) -> list[str]:
    """Show levels that decide nothing in this run although there is a limit and a figure."""
    shown = []
    for level in figures.slis:
        if level.judged or level.limit is None or level.measured is None or is_asked(level.source):
            continue
        side = "within" if level.met else "over"
        measured, limit = words(level.sli, level.measured), words(level.sli, level.limit)
        why = level.note or "shown only, not judged"
        name = level_words(level.sli, level.percentile)
        shown.append(f"  {name} {measured}, {side} {limit} ({why})")
    return shown


def _grey(line: str) -> str:
    return f"{GREY}{line}{PLAIN}"


def _facts(figures: RunFigures) -> list[str]:
    events, watch = figures.events, figures.watch
    unregistered = sorted(figures.unregistered.items(), key=lambda each: -each[1])
    why = "; ".join(f"{count:,} could not register: {reason}" for reason, count in unregistered)
    spam = f"{events.sent:,} sent, {events.dropped:,} dropped by the spam filter"
    streams = f"{watch.open:,} open, {watch.events:,} events, {watch.restarts:,} restarts"
    rejected = (f"{count:,} times {what}" for what, count in sorted(figures.rejected.items()))
    rows = [
        ("nodes", _node_words(figures)),
        ("unregistered", why),
        ("leases", _lease_words(figures)),
        ("pods", _pod_words(figures)),
        ("requests", _request_words(figures)),
        ("events", spam if events.sent or events.dropped else ""),
        ("watches", streams if watch.open or watch.restarts or watch.events else ""),
        ("rejected", ", ".join(rejected)),
        *((name, _agent_words(each)) for name, each in sorted(figures.agents.items())),
        ("shards", _shard_words(figures)),
        ("fleet", _process_words(figures)),
        ("server", _server_words(figures)),
    ]
    columns = max(LABEL_COLUMNS, *(len(label) + 1 for label, words in rows if words))
    return [f"  {label:<{columns}}{words}" for label, words in rows if words]


def _node_words(figures: RunFigures) -> str:
    nodes = figures.nodes
    words = f"{nodes.ready:,} of {nodes.requested:,} Ready"
    if nodes.time_to_ready_s is not None:
        is_so = nodes.ready >= nodes.requested  # or those of a dashboard went before the end
        words += ", all after " if is_so else " at the end; all were Ready after "
        words += duration(nodes.time_to_ready_s)
        if nodes.time_to_ready_s > 0:
            words += f" ({nodes.requested / nodes.time_to_ready_s:,.0f}/s)"
        if nodes.time_to_settled_s is not None:
            words += f", watches open after {duration(nodes.time_to_settled_s)}"
    elif nodes.registered < nodes.requested:
        words += f", {nodes.registered:,} registered"
    if figures.start == "cold":
        words += ", started cold"
    if figures.pace != "adaptive":
        words += f", started at {figures.pace}"
    if nodes.ever_not_ready:
        words += f"; {nodes.ever_not_ready:,} WENT NotReady during the run"
    return words


def _lease_words(figures: RunFigures) -> str:
    lease = figures.lease
    if not lease.renewals:
        return ""
    words = f"{lease.renewals:,} renewals, sent {_spread(lease.late)} late"
    if lease.interval_max_s:
        words += f", longest interval {lease.interval_max_s:.1f} s"
    return words + (f"; {lease.missed:,} MISSED" if lease.missed else ", none missed")


def _pod_words(figures: RunFigures) -> str:
    pods = figures.pods
    if not (pods.started or pods.deleted or pods.failed):
        return ""
    words = f"{pods.started:,} started, {pods.deleted:,} deleted"
    if pods.start.count:
        words += f", Running after {_spread(pods.start)}"
    return words + (f"; {pods.failed:,} FAILED" if pods.failed else "")


def _request_words(figures: RunFigures) -> str:
    count = figures.request_count()
    if not count:
        return ""
    words = f"{count:,}"
    if figures.wall_s > 0:
        words += f" in {duration(figures.wall_s)} ({count / figures.wall_s:,.0f}/s on average)"
    failed = sum(r.count for r in figures.requests if is_failure(r.resource, r.code))
    return f"{words}, {failed:,} error{'s' if failed != 1 else ''}"


def _agent_words(figures: AgentFigures) -> str:
    return (
        f"{figures.running:,} running, {figures.watches_open:,} watches open, "
        f"{figures.watch_events:,} events, {figures.requests.total:,} requests, "
        f"{figures.received_bytes / 1e6:,.1f} MB received"
    )


def _shard_words(figures: RunFigures) -> str:
    """Name the slowest process; the percentiles of all hide it."""
    slowest = next((each for each in figures.shards if each.name == figures.slowest_shard), None)
    if slowest is None:
        return ""
    words = f"{len(figures.shards)}"
    if slowest.request_p99_ms is not None:
        words += f", slowest {slowest.name}: requests p99 {slowest.request_p99_ms:,.1f} ms"
    return words


def _process_words(figures: RunFigures) -> str:
    process, count = figures.process, figures.request_count()
    words = [f"{process.cpu_s:.1f} s CPU"]
    if figures.wall_s > 0:
        words[0] += f" ({process.cpu_s / figures.wall_s:.1%} of a core)"
    if count:
        words.append(f"{process.cpu_s * 1e6 / count:,.0f} us per request")
    if process.rss_bytes:
        words.append(f"{size(process.rss_bytes)} memory")
    if process.timer_lag.count:
        words.append(f"timers {_spread(process.timer_lag)} late")
    return ", ".join(words)


def _server_words(figures: RunFigures) -> str:
    words = [figures.server_version or "unknown version"]
    words.append(f"fidelity {figures.fidelity}")
    words.append(f"identity {figures.identity}")
    words.append(figures.encoding)
    if (figures.watches == "shared") is (figures.fidelity == "kubelet"):
        words.append(f"watches {figures.watches}")
    if figures.etcd_fsync is False:
        words.append("etcd fsync OFF (writes are faster than on a real disk; --fsync turns it on)")
    elif figures.etcd_fsync:
        words.append("etcd fsync on")
    return ", ".join(words)


def _requests(requests: Sequence[RequestFigures]) -> list[str]:
    """Tabulate errors, refused requests first, and the most frequent other kinds of request."""
    ordered = sorted(requests, key=lambda r: (-r.count, r.resource, r.verb, r.code))
    failures = [r for r in ordered if is_failure(r.resource, r.code)]
    failures.sort(key=lambda r: (not is_refused_renewal(r.verb, r.resource, r.code), r.code != 429))
    good = [r for r in ordered if not is_failure(r.resource, r.code)]
    shown = failures[:TOP_ROWS] + good[:TOP_ROWS]
    rows = [("verb", "resource", "code", "count", "p50 ms", "p99 ms")]
    rows += [
        (
            request.verb,
            request.resource,
            str(request.code) if request.code else "none",
            f"{request.count:,}",
            _ms(request.latency, 0.5),
            _ms(request.latency, 0.99),
        )
        for request in shown
    ]
    rest = [request for request in ordered if request not in shown]
    if rest:
        latency = merged(request.latency for request in rest)
        count = f"{sum(request.count for request in rest):,}"
        kinds = f"{len(rest)} more kinds"
        code = "2xx" if all(200 <= r.code < 300 for r in rest) else "any"
        rows.append(("other", kinds, code, count, _ms(latency, 0.5), _ms(latency, 0.99)))
    return table(rows, left=2, indent="  ")


def _closing(
    figures: RunFigures, run_directory: Path | None, next_steps: Sequence[str], report: str
) -> list[str]:
    lines = [f"  {run_directory / SUMMARY}"] if run_directory is not None else []
    lines += [f"  {report}"] if report else []
    if next_steps:
        lines.append(
            "What to do:" if figures.judgement().exit_code is Exit.INVALID else "Try next:"
        )
        lines += [f"  {step}" for step in next_steps]
    return lines


def duration(seconds: float) -> str:
    """Return a duration as people say it: 4.2 s, 3 min 5 s, 2 h 10 min."""
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: int) -> str:
    """Return bytes in MB or GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _ms(histogram: Histogram, fraction: float) -> str:
    if not histogram.count:
        return "-"
    value_ms = histogram.percentile_us(fraction) / 1000
    return f"{value_ms:,.1f}" if value_ms < 100 else f"{value_ms:,.0f}"


def _spread(histogram: Histogram) -> str:
    return f"p50 {_ms(histogram, 0.5)} ms, p99 {_ms(histogram, 0.99)} ms"
