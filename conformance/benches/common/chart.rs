//! Pictures of what was measured.

use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

/// What was measured of one way to do something, by the number of callers.
pub(crate) struct Line {
    pub(crate) name: String,
    /// Callers, calls in a second, and microseconds that 99 of 100 calls take at most.
    pub(crate) points: Vec<(f64, f64, f64)>,
}

const COLOURS: [RGBColor; 3] = [
    RGBColor(0, 90, 181),
    RGBColor(220, 50, 32),
    RGBColor(120, 120, 120),
];

/// Draws rate and p99 over the number of callers, side by side.
pub(crate) fn draw(path: &Path, title: &str, lines: &[Line]) {
    let area = SVGBackend::new(path, (900, 360)).into_drawing_area();
    area.fill(&WHITE).expect("the picture");
    let (left, right) = area.split_horizontally(450);
    panel(
        &left,
        &format!("{title}: calls in a second"),
        lines,
        |point| (point.0, point.1),
    );
    panel(
        &right,
        &format!("{title}: p99 in microseconds"),
        lines,
        |point| (point.0, point.2),
    );
    area.present().expect("the picture");
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    title: &str,
    lines: &[Line],
    of: impl Fn(&(f64, f64, f64)) -> (f64, f64),
) {
    let points = || lines.iter().flat_map(|line| line.points.iter().map(&of));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(65)
        .build_cartesian_2d(
            around(points().map(|point| point.0)).log_scale(),
            around(points().map(|point| point.1)).log_scale(),
        )
        .expect("the axes");
    chart
        .configure_mesh()
        .x_desc("callers")
        .x_label_formatter(&|value| format!("{value:.0}"))
        .y_labels(5)
        .y_label_formatter(&|value| format!("{value:.0}"))
        .light_line_style(WHITE)
        .draw()
        .expect("the grid");
    for (line, colour) in lines.iter().zip(COLOURS) {
        chart
            .draw_series(LineSeries::new(
                line.points.iter().map(&of),
                colour.stroke_width(2),
            ))
            .expect("a line")
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()
        .expect("the names");
}

/// What all values are within.
fn around(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    (low * 0.9)..(high * 1.1)
}
