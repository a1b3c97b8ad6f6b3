"""What opens for a cell: every figure, percentiles, small charts, the machine, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout.flags import Status
from flatout.record import Cell, Distribution, Rate
from flatout.show import about, numbers
from flatout.show.page import cellcharts, values
from flatout.show.page.cells import PHASES, Shown
from flatout.show.page.html import Html, hidden, join, tag
from flatout.show.safe import clean

Pair = tuple[str, Html | str]


def panels(shown: Shown, samples_dir: Path | None) -> Html:
    """A panel for each cell; closed until its fragment is in the address."""
    return join(_panel(shown, number, samples_dir) for number in range(len(shown.cells)))


def name(cell: Cell) -> str:
    """`128K × 2`, `Prefill 8K`, `Burst 8K × 4`."""
    if cell.phase == "prefill":
        return f"Prefill {about.context(cell)}"
    return about.cell_name(cell).replace("burst", "Burst")


def _panel(shown: Shown, number: int, samples_dir: Path | None) -> Html:
    cell = shown.cells[number]
    anchor = shown.anchor(cell)
    title_id = f"title-{number + 1}"
    body: list[Html | None] = [_says(cell)]
    if cell.decode is not None and about.measured(cell):
        body += [_headline(cell), cellcharts.decode(cell, samples_dir), _percentiles(_decode_rows(cell))]
        body += [_list("Figures", _decode_pairs(cell)), _list("Tokens and window", _window_pairs(cell))]
    elif cell.burst is not None and about.measured(cell):
        body += [_headline(cell), cellcharts.burst(cell), _percentiles(_burst_rows(cell))]
        body += [_list("Figures", _burst_pairs(cell)), _list("Tokens", _window_pairs(cell))]
    elif cell.prefill is not None and about.measured(cell):
        body += [_headline(cell), _percentiles([("TTFT, cold", cell.prefill.ttft_ms, "ms")]), _samples(cell)]
    body += [_list("Plan", _plan_pairs(cell)), _machine(cell), _self_check(cell), _attempts(cell)]
    return tag(
        "section",
        tag(
            "div",
            _bar(shown, number, title_id),
            body,
            class_="inner",
        ),
        id=anchor, class_="panel", tabindex="-1", aria_labelledby=title_id,
    )  # fmt: skip


def _bar(shown: Shown, number: int, title_id: str) -> Html:
    cell = shown.cells[number]
    back = {"prefill": "prefill", "decode": "decode", "burst": "bursts"}[cell.phase]

    def step(to: int, word: str, sign: str) -> Html | None:
        if not 0 <= to < len(shown.cells):
            return None
        other = shown.cells[to]
        return tag("a", tag("span", sign, aria_hidden="true"), hidden(f"{word} cell: {name(other)}"),
                   href=f"#{shown.anchor(other)}", title=f"{word}: {name(other)}", class_="step")  # fmt: skip

    about_phase = PHASES[cell.phase] + (
        f", {cell.concurrency} request{'s' if cell.concurrency != 1 else ''} at once" if cell.phase != "prefill" else ""
    )
    return tag(
        "header",
        tag("div", tag("h3", name(cell), id=title_id), tag("p", about_phase, class_="soft")),
        tag(
            "nav", step(number - 1, "Previous", "←"), step(number + 1, "Next", "→"),
            tag("a", "Close", href=f"#{back}", class_="close"), aria_label="Cells",
        ),
        class_="bar",
    )  # fmt: skip


def _says(cell: Cell) -> Html:
    """The status, its sentence and reason; each flag with what was seen here."""
    parts: list[Html] = [
        tag(
            "p", tag("b", about.status_word(cell.status), class_=f"word {status_class(cell.status)}"), " ",
            about.status_sentence(cell.status),
        )
    ]  # fmt: skip
    if cell.reason:
        parts.append(tag("p", "Reason: ", clean(cell.reason, 1000)))
    if cell.error:
        parts.append(tag("p", "The server's words: ", tag("q", clean(cell.error, 2000), class_="mono")))
    if cell.flags:
        parts.append(tag("ul", [_flag(flag.name, flag.detail) for flag in cell.flags[:100]], class_="flags"))
    return tag("div", parts, class_="says")


def _flag(flag: str, detail: str) -> Html:
    word = clean(flag, 40).replace("_", " ")
    seen = tag("span", f" {clean(detail, 600)}.") if detail else None
    return tag("li", tag("b", word), ":", seen, " ", tag("span", about.flag_sentence(flag), class_="soft"))


def status_class(status: str) -> str:
    """A class for a known status; one for all others."""
    return f"s-{status}" if status in set(Status) else "s-other"


def _headline(cell: Cell) -> Html:
    """The few numbers that are looked for first, large."""
    big: list[tuple[str, str, str]] = []
    if cell.decode is not None:
        d = cell.decode
        big = [
            (values.rate(d.total_tok_s.value), "tok/s in total", _spread(d.total_tok_s)),
            (values.rate(d.per_request_tok_s.p50), "tok/s each", values.half(d.per_request_tok_s)),
            (values.ms(d.ttft_ms.p50), "TTFT", f"cold {values.ms(d.cold_ttft_ms)}" if d.cold_ttft_ms else ""),
            (values.ms(d.itl_ms.p50, fine=True), "between tokens", f"p99 {values.ms(d.itl_ms.p99, fine=True)}"),
        ]
    elif cell.burst is not None:
        b = cell.burst
        big = [
            (values.rate(b.end_to_end_tok_s.value), "tok/s, first send to last end", _spread(b.end_to_end_tok_s)),
            (values.seconds(b.duration_s), "for all", f"{values.count(b.completed)} completed"),
            (values.ms(b.ttft_ms.p50), "TTFT", ""),
        ]
    elif cell.prefill is not None:
        p = cell.prefill
        big = [
            (values.rate(p.prefill_tok_s.value), "prompt tok/s", _spread(p.prefill_tok_s)),
            (values.ms(p.ttft_ms.p50), "TTFT, cold", ""),
        ]
    return tag("dl", [_number(*one) for one in big], class_="big")


def _spread(rate: Rate) -> str:
    """`450.1–458.0 (±0.4 %, within this run)`."""
    if rate.low is None or rate.high is None:
        return clean(rate.reason, 120) if rate.reason else "no interval"
    kind = f", {clean(rate.interval, 40)}" if rate.interval else ""
    return f"{values.rate(rate.low)}–{values.rate(rate.high)} ({values.interval(rate)}{kind})"


def _number(number: str, unit: str, below: str) -> Html:
    tail = tag("dd", below, class_="soft") if below and below != numbers.NONE else None
    return tag("div", tag("dt", unit), tag("dd", number, class_="n"), tail)


def _list(title: str, pairs: Sequence[Pair]) -> Html | None:
    if not pairs:
        return None
    return join(tag("h4", title), tag("dl", [tag("div", tag("dt", k), tag("dd", v)) for k, v in pairs], class_="pairs"))


def _decode_rows(cell: Cell) -> list[tuple[str, Distribution, str]]:
    d = cell.decode
    if d is None:
        return []
    rows = [("Per request", d.per_request_tok_s, "tok/s"), ("TTFT", d.ttft_ms, "ms")]
    if d.ttft_answer_ms is not None:
        rows.append(("TTFT of the answer", d.ttft_answer_ms, "ms"))
    return [*rows, ("TPOT", d.tpot_ms, "ms"), ("Between tokens (ITL)", d.itl_ms, "ms")]


def _burst_rows(cell: Cell) -> list[tuple[str, Distribution, str]]:
    b = cell.burst
    if b is None:
        return []
    return [
        ("Per request", b.per_request_tok_s, "tok/s"), ("TTFT", b.ttft_ms, "ms"), ("TPOT", b.tpot_ms, "ms"),
        ("Between tokens (ITL)", b.itl_ms, "ms"),
    ]  # fmt: skip


def _percentiles(rows: Sequence[tuple[str, Distribution, str]]) -> Html:
    heads = ["", "p50", "95 % interval", "p90", "p99", "longest", "mean", "samples"]
    made = []
    for label, found, unit in rows:
        is_rate = unit == "tok/s"

        def one(value: float | None, which: str, found: Distribution = found, is_rate: bool = is_rate) -> Html:
            text = values.rate(value) if is_rate else values.ms(value, fine=True, unit=False)
            return tag("td", values.shown(text, values.why(found.reasons, which)), _half(found, which))

        cut = f", {values.count(found.censored)} cut" if found.censored else ""
        whose = tag("span", clean(found.whose, 80), class_="whose") if found.whose else None
        made.append(
            tag(
                "tr", tag("th", label, " ", tag("span", unit, class_="unit"), whose, scope="row"),
                one(found.p50, "p50"),
                tag("td", values.shown(values.half(found), values.why(found.reasons, "interval"))),
                one(found.p90, "p90"), one(found.p99, "p99"), one(found.max, "max"), one(found.mean, "mean"),
                tag("td", values.count(found.n) + cut),
            )
        )  # fmt: skip
    head = tag("tr", [tag("th", text, scope="col") if text else tag("td") for text in heads])
    return tag(
        "div",
        tag("table", tag("caption", "Percentiles"), tag("thead", head), tag("tbody", made), class_="mini"),
        _missing([found for _, found, _ in rows]),
        class_="wide", tabindex="0", role="region", aria_label="Percentiles",
    )  # fmt: skip


def _half(found: Distribution, which: str) -> Html | None:
    """The interval of p90 or p99, small beside it; why there is none stands below the table."""
    if which not in ("p90", "p99"):
        return None
    low, high = values.drawable(getattr(found, f"{which}_low")), values.drawable(getattr(found, f"{which}_high"))
    text = numbers.interval(values.drawable(getattr(found, which)), low, high)
    if text == numbers.NONE:
        return None
    ends = f"{values.ms(low, fine=True, unit=False)} to {values.ms(high, fine=True)}"
    return tag("span", f" {text}", class_="soft", title=ends)


def _missing(found: Sequence[Distribution]) -> Html | None:
    """Why figures are missing, in text."""
    told = dict.fromkeys(
        f"{clean(name, 20)}: {clean(text, 200)}" for one in found for name, text in list(one.reasons.items())[:20]
    )
    return tag("p", "— ", "; ".join(told), class_="soft") if told else None


def _pair(pairs: list[Pair], label: str, text: str, reason: str | None = None, *, always: bool = False) -> None:
    """Adds a figure; one that is missing stands there only with its reason, or where it always must."""
    if text != numbers.NONE:
        pairs.append((label, text))
    elif reason or always:
        why = clean(reason, 200) if reason else "not recorded"
        pairs.append((label, tag("span", f"— ({why})", class_="no")))


def _decode_pairs(cell: Cell) -> list[Pair]:
    d = cell.decode
    pairs: list[Pair] = []
    if d is None:
        return pairs
    why = d.reasons
    gap = values.ms(d.longest_gap_ms) + (" or longer (cut by the window's end)" if d.longest_gap_open else "")
    _pair(pairs, "Longest gap", gap if d.longest_gap_ms is not None else numbers.NONE, why.get("longest_gap_ms"))
    _pair(pairs, "TTFT, cold", values.ms(d.cold_ttft_ms), why.get("cold_ttft_ms"))
    _pair(pairs, "Connect", values.ms(d.connect_ms), why.get("connect_ms"))
    _pair(pairs, "Active, by the client", values.mean(d.active_own_mean), why.get("active_own_mean"), always=True)
    _pair(pairs, "Active, by the server", values.mean(d.active_server_mean), why.get("active_server_mean"), always=True)
    _pair(pairs, "Waiting, by the server", values.mean(d.waiting_server_mean), why.get("waiting_server_mean"))
    _pair(pairs, "KV cache in use, most", values.percent(d.kv_use_max), why.get("kv_use_max"))
    _pair(pairs, "Completed requests", values.count(d.completed), why.get("completed"), always=True)
    _pair(pairs, "Failed requests", values.count(d.failed_requests))
    if d.rate_limited:
        _pair(pairs, "Rate-limited", values.count(d.rate_limited))
    _pair(pairs, "Mean depth", _tokens(d.mean_depth_tokens), why.get("mean_depth_tokens"))
    _pair(pairs, "Prompt", _range(d.prompt_tokens_min, d.prompt_tokens_max), why.get("prompt_tokens"))
    _pair(pairs, "Cached of it, mean", _tokens(d.cached_tokens_mean), why.get("cached_tokens_mean"))
    _pair(pairs, "Output asked, mean", _tokens(d.asked_tokens_mean), why.get("asked_tokens_mean"))
    _pair(pairs, "Output given, mean", _tokens(d.output_tokens_mean), why.get("output_tokens_mean"))
    if d.acceptance is not None:
        a = d.acceptance
        length = numbers.NONE if values.drawable(a.length) is None else f"{a.length:.2f}"
        share = f", {values.percent(a.draft_share)} of the drafts" if a.draft_share is not None else ""
        _pair(pairs, "Acceptance length", length if length == numbers.NONE else f"{length} ({clean(a.how, 40)}{share})",
              a.reason)  # fmt: skip
    _pair(pairs, "Preemptions", values.count(d.preemptions), why.get("preemptions"))
    _pair(pairs, "Share of looping text", values.percent(d.looping_share), why.get("looping_share"))
    _pair(pairs, "Drift over the window", values.percent(d.drift_change), why.get("drift_change"))
    if d.two_modes_tok_s is not None:
        slow, fast = d.two_modes_tok_s
        _pair(pairs, "Two speeds", f"{values.rate(slow)} and {values.rate(fast)} tok/s")
    return pairs


def _tokens(value: float | None) -> str:
    text = values.count(value)
    return text if text == numbers.NONE else f"{text} tokens"


def _range(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return numbers.NONE
    return _tokens(low) if low == high else f"{values.count(low)}–{values.count(high)} tokens"


def _burst_pairs(cell: Cell) -> list[Pair]:
    b = cell.burst
    pairs: list[Pair] = []
    if b is not None:
        _pair(pairs, "Longest gap", values.ms(b.longest_gap_ms))
        _pair(pairs, "Completed requests", values.count(b.completed))
        _pair(pairs, "Failed requests", values.count(b.failed_requests))
        _pair(pairs, "Rate-limited", values.count(b.rate_limited))
        _pair(pairs, "Output", _tokens(b.output_tokens))
    return pairs


def _window_pairs(cell: Cell) -> list[Pair]:
    pairs: list[Pair] = []
    if cell.decode is not None:
        _pair(pairs, "Output tokens", values.count(cell.decode.output_tokens), cell.decode.reasons.get("output_tokens"))
    t = cell.tokens
    if t is not None:
        _pair(pairs, "Counted by", clean(t.source, 80) if t.source else numbers.NONE, t.reason, always=True)
        _pair(pairs, "Estimated share", values.percent(t.estimated_share))
        _pair(pairs, "Own count", values.count(t.own_total))
        _pair(pairs, "Server's count", values.count(t.server_total))
        _pair(pairs, "Reasoning not streamed", values.count(t.reasoning_unstreamed))
    w = cell.window
    if w is not None:
        _pair(pairs, "Measured for", values.seconds(w.length_s))
        _pair(pairs, "Window opened", about.moment(w.opened) or numbers.NONE)
        _pair(pairs, "Window ended by", clean(w.ended_by, 60))
        _pair(pairs, "Steady after", values.seconds(w.steady_after_s))
    return pairs


def _plan_pairs(cell: Cell) -> list[Pair]:
    pairs: list[Pair] = []
    _pair(pairs, "Context", _tokens(cell.context_tokens), "its length is not known", always=True)
    _pair(pairs, "Output, at most", _tokens(cell.max_output))
    _pair(pairs, "Room needed", _tokens(cell.need_tokens))
    if cell.started:
        _pair(pairs, "Started", about.moment(cell.started) or numbers.NONE)
    return pairs


def _samples(cell: Cell) -> Html | None:
    """The cold prompts of a prefill cell, each."""
    if cell.prefill is None or not cell.prefill.samples:
        return None
    rows = [
        tag(
            "tr", tag("th", f"{number}", scope="row"), tag("td", values.count(s.prompt_tokens)),
            tag("td", values.count(s.cached_tokens)), tag("td", values.ms(s.ttft_ms)),
            tag("td", values.rate(s.prefill_tok_s)),
            tag("td", ("used" if s.used else "not used") + (f": {clean(s.note, 120)}" if s.note else "")),
        )
        for number, s in enumerate(cell.prefill.samples[:100], 1)
    ]  # fmt: skip
    head = tag("tr", [tag("th", text, scope="col") for text in ("#", "Prompt", "Cached", "TTFT", "tok/s", "")[:-1]],
               tag("td"))  # fmt: skip
    table = tag("table", tag("caption", "Cold prompts"), tag("thead", head), tag("tbody", rows), class_="mini")
    return tag("div", table, class_="wide", tabindex="0", role="region", aria_label="Cold prompts")


def _machine(cell: Cell) -> Html | None:
    """Means and extremes of the machine in the window, throttling, and energy."""
    t = cell.telemetry
    if t is None:
        return None
    pairs: list[Pair] = []
    for key, mean in list(t.means.items())[:40]:
        most = t.maxima.get(key)
        text = _reading(key, mean)
        top = "" if most is None else f", at most {_reading(key, most)}"
        _pair(pairs, reading_name(key), text if text == numbers.NONE else text + top, t.reasons.get(key))
    throttle = ", ".join(f"{clean(n, 40)} {values.percent(s)}" for n, s in list(t.throttle.items())[:20] if s)
    _pair(pairs, "Throttled by", throttle or ("nothing" if "throttle" not in t.reasons else numbers.NONE),
          t.reasons.get("throttle"))  # fmt: skip
    how = f" ({clean(t.energy_how, 60)})" if t.energy_how else ""
    _pair(pairs, "Energy", numbers.NONE if t.energy_j is None else values.joule(t.energy_j) + how)
    return join(_list("Machine in the window", pairs), cellcharts.machine(cell), _why_not(t.reasons))


def _why_not(reasons: Mapping[str, str]) -> Html | None:
    told: dict[str, list[str]] = {}
    for key, reason in list(reasons.items())[:40]:
        told.setdefault(clean(reason, 200), []).append(reading_name(key))
    text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in told.items())
    return tag("p", "— ", text, class_="soft") if text else None


_UNITS = {"_percent": "%", "_bytes": "", "_mhz": "MHz", "_w": "W", "_c": "°C", "_j": "J"}


def reading_name(key: str) -> str:
    """`sm_clock_mhz` → `SM clock`."""
    words = clean(key, 60)
    for end in _UNITS:
        words = words.removesuffix(end)
    shown = words.replace("_", " ")
    for small, large in (("gpu", "GPU"), ("cpu", "CPU"), ("sm ", "SM "), ("ram", "RAM"), ("kv ", "KV ")):
        shown = shown.replace(small, large)
    return shown[:1].upper() + shown[1:]


def _reading(key: str, value: float | None) -> str:
    if value is None or values.drawable(value) is None:
        return numbers.NONE
    if key.endswith("_bytes"):
        return values.short(numbers.size(value))
    unit = next((unit for end, unit in _UNITS.items() if key.endswith(end)), "")
    return f"{values.short(f'{value:,.4g}')} {unit}".strip()


def _self_check(cell: Cell) -> Html | None:
    s = cell.self_check
    if s is None:
        return None
    pairs: list[Pair] = []
    _pair(pairs, "Clock of arrivals", clean(s.clock, 60))
    _pair(
        pairs,
        f"Reads later than {values.ms(s.late_limit_ms)}",
        f"{values.count(s.late_reads)} of {values.count(s.reads)}",
    )
    _pair(pairs, "Reads that took several events", values.count(s.merged_reads))
    _pair(pairs, "Lag, p50", values.ms(s.lag_p50_ms))
    _pair(pairs, "Lag, p99", values.ms(s.lag_p99_ms))
    _pair(pairs, "Lag, worst", values.ms(s.lag_worst_ms))
    _pair(pairs, "Client's CPU", values.percent(s.cpu_share))
    _pair(pairs, "Pauses of the collector", f"{values.count(s.gc_pauses)}, longest {values.ms(s.gc_longest_ms)}")
    _pair(pairs, "Steps of the clock", values.count(s.clock_steps))
    return _list("flatout's watch on itself", pairs)


def _attempts(cell: Cell) -> Html | None:
    if not cell.attempts:
        return None
    rows = [
        tag("li", f"{about.moment(a.started)}: {values.rate(a.total_tok_s)} tok/s, thrown away: {clean(a.reason, 300)}")
        for a in cell.attempts[:20]
    ]
    return join(tag("h4", "Measured before and redone"), tag("ul", rows, class_="soft"))
