"""Report of the check of a calibration: the fit of every pair of cameras, and faults with their correction."""

from typing import TYPE_CHECKING

from page4d_cli.tables import Column, print_fields, print_table

if TYPE_CHECKING:
    from page4d.output.record import CalibrationCheckRecord


def report_check(record: "CalibrationCheckRecord") -> None:
    """Print the score of every pair of calibrated cameras, and what is wrong."""
    if record.pairs:
        columns = [Column("pair"), Column("score", right=True), Column("instants", right=True), Column("fits people")]
        rows = [
            ("-".join(pair.views), f"{pair.score:.2f}", str(pair.num_instants), "yes" if pair.fits else "no")
            for pair in record.pairs
        ]
        print_table(columns, rows, "calibration and people")
    fields = [("fault:", finding.text) for finding in record.findings]
    fields += [("clock:", text) for text in record.clocks]
    if not record.is_checked:
        fields.append(("not checked:", record.reason))
    else:
        fields += [("not checked:", f"{view}: too few people together with other views") for view in record.unchecked]
        if not fields:
            fields.append(("check:", "no fault of the calibration is found"))
    print_fields(fields)
