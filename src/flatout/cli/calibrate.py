"""`flatout calibrate` and `flatout rig`: the server of known speed, and how well this machine reads it."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.cli.options import EXIT_OK, Json, Markdown, Plain, command, cores_of, flag, option, say


@command
def calibrate(
    quick: Annotated[bool, flag("Half a minute instead of a minute and three quarters.", "--quick")] = False,
    rig_cores: Annotated[str | None, option("Cores of the server of known speed, such as 0.")] = None,
    load_cores: Annotated[str | None, option("Cores of the process that reads, such as 1.")] = None,
    md: Markdown = False,
    json_output: Json = False,
    plain: Plain = False,
) -> int:
    """Measure known speeds on this machine: truth beside reading, and how far this machine can be trusted."""
    from flatout.calibrate.conduct import Doing
    from flatout.calibrate.conduct import calibrate as measured
    from flatout.run.conduct import EXIT_DOUBT
    from flatout.show import calibration as shown
    from flatout.show import document

    calibration = measured(
        lambda event: say(f"  {event.text}") if isinstance(event, Doing) else None,
        rig_cores=cores_of(rig_cores, "--rig-cores"),
        load_cores=cores_of(load_cores, "--load-cores"),
        quick=quick,
    )
    if json_output:
        print(calibration.model_dump_json(indent=1))
    else:
        document.put(shown.document(calibration), md=md, plain=plain, width=160)
    # the other points search for the limit
    known = [point for point in calibration.points if point.kind in ("scale", "shape")]
    return EXIT_OK if all(point.trusted for point in known) else EXIT_DOUBT


@command
def rig(context: typer.Context) -> int:
    """Run a server of exactly known speed (flatout rig --help lists its knobs)."""
    from flatout.rig.command import main

    return main(context.args)
