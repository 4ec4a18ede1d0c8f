"use strict";
// Draws the plots of the page with uPlot, from the JSON in the page. Nothing is fetched.
//
// Each plot is a figure with a table of its series, which stays where scripts do not run. All plots
// over time share a cursor. Dragging zooms in, a double click zooms out.
(() => {
  const {plots, phases, until_s: untilS} = JSON.parse(document.getElementById("plots").textContent);
  const HEIGHT = 190;
  const DASHES = [[], [8, 3], [3, 2], [8, 3, 2, 3], [1, 2], [12, 4]];
  const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
  const FONT = "11px system-ui, sans-serif";
  const drawn = new Map();

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = value => value.toLocaleString("en-US", {maximumSignificantDigits: 4});

  function clock(value) {
    const whole = Math.round(value);
    const parts = [Math.floor(whole / 60) % 60, whole % 60];
    if (whole >= 3600) parts.unshift(Math.floor(whole / 3600));
    else parts[0] = Math.floor(whole / 60);
    return parts.map((part, at) => at ? String(part).padStart(2, "0") : part).join(":");
  }

  // A stack is drawn as areas from the back: each line is its own value plus all that follow it.
  function stacked(data, isShown) {
    const sums = new Array(data[0].length).fill(0);
    const rows = data.slice(1).map(row => [...row]);
    for (let at = rows.length - 1; at >= 0; at--)
      rows[at] = rows[at].map((value, x) => isShown[at] ? sums[x] += value ?? 0 : null);
    return [data[0], ...rows];
  }

  // Faults are bands and phases are lines. A phase that the next one follows closely has no label.
  function mark(chart) {
    const {ctx, bbox, over} = chart;
    const pixels = value => Math.round(chart.valToPos(value, "x", true));
    over.querySelectorAll(".phase").forEach(each => each.remove());
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const labels = [];
    for (const {name, kind, from_s: fromS, until_s: endS} of phases) {
      const begin = pixels(fromS);
      if (kind === "fault") {
        ctx.globalAlpha = 0.15;
        ctx.fillStyle = colour("--fault");
        ctx.fillRect(begin, bbox.top, pixels(endS ?? untilS) - begin, bbox.height);
      } else if (fromS > 0) {
        ctx.globalAlpha = 1;
        ctx.strokeStyle = colour(kind === "broken" ? "--fail" : "--phase");
        ctx.lineWidth = devicePixelRatio;
        ctx.setLineDash(kind === "broken" ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(begin, bbox.top);
        ctx.lineTo(begin, bbox.top + bbox.height);
        ctx.stroke();
        if (begin >= bbox.left && begin < bbox.left + bbox.width)
          labels.push({name, kind, left: (begin - bbox.left) / devicePixelRatio});
      }
    }
    ctx.restore();
    let end = Infinity;
    labels.sort((a, b) => a.left - b.left);
    for (const {name, kind, left} of labels.reverse()) {
      const label = document.createElement("span");
      label.className = `phase ${kind}`;
      label.textContent = name;
      label.style.left = `${left}px`;
      over.append(label);
      if (left + label.offsetWidth > Math.min(end, over.clientWidth + 12)) label.remove();
      else end = left;
    }
  }

  // A limit is a line across the plot. One that lies far above all values is named at the top.
  function limits(chart, plot) {
    const {ctx, bbox, over} = chart;
    over.querySelectorAll(".limit").forEach(each => each.remove());
    for (const [name, value] of Object.entries(plot.limits)) {
      const label = document.createElement("span"), isAbove = value > chart.scales.y.max;
      const y = isAbove ? bbox.top : Math.round(chart.valToPos(value, "y", true));
      label.className = "limit";
      label.textContent = isAbove ? `${name} \u2191` : name;
      over.append(label);
      const top = (y - bbox.top) / devicePixelRatio;
      label.style.top = `${isAbove || top < 14 ? top + 1 : top - 14}px`;
      if (isAbove) continue;
      ctx.save();
      ctx.strokeStyle = colour("--fail");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.restore();
    }
  }

  // The highest value of the axis: a limit is on it unless the values would become a flat line.
  function highest(plot, high) {
    const near = Object.values(plot.limits).filter(each => plot.kind === "sizes" || each <= high * 4);
    return Math.max(high, ...near) * 1.05 || 1;
  }

  // Of a logarithmic axis, which has nine lines for each power of ten, only the powers.
  function tens(chart, lines) {
    const isPower = value => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9;
    return chart.scales.y.distr === 3 ? lines.map(each => isPower(each) ? each : null) : lines;
  }

  function axis(scale, more) {
    return {
      scale, font: FONT, labelFont: FONT, stroke: () => colour("--faint"),
      grid: {show: scale === "y", stroke: () => colour("--grid"), width: 1, filter: tens},
      ticks: {stroke: () => colour("--grid"), width: 1, size: 4}, ...more,
    };
  }

  function options(plot, width, raw) {
    const isTime = plot.kind === "lines" || plot.kind === "stack";
    const [first, last] = [raw[0][0], raw[0].at(-1)];
    const labelX = {bars: "s", sizes: "nodes"}[plot.kind];
    const formatX = isTime ? clock : number;
    // A series that was sampled less often keeps its value until the next sample.
    const at = (index, x) => {
      while (x >= 0 && raw[index][x] == null) x--;
      return x < 0 ? "-" : number(raw[index][x]);
    };
    return {
      width, height: HEIGHT, padding: [14, 16, 0, 0],
      scales: {
        x: {
          time: false,
          range: (_, low, high) => low === first && high === last
            ? [0, isTime ? Math.max(untilS, last) : last * 1.02] : [low, high],
        },
        y: plot.is_log
          ? {distr: 3, range: (_, low, high) => uPlot.rangeLog(low, Math.max(high, ...Object.values(plot.limits)), 10, false)}
          : {range: (_, low, high) => [0, highest(plot, high)]},
      },
      axes: [
        axis("x", {
          values: (_, found) => found.map(formatX), space: 56, size: labelX ? 28 : 32,
          label: labelX, labelSize: 16, ...(isTime && {incrs: SECONDS}),
        }),
        axis("y", {
          values: (_, found) => found.map(value => value == null ? "" : number(value)),
          size: (_, found) => 14 + 6.4 * Math.max(2, ...(found ?? []).map(each => each.length)),
          space: 28, label: plot.unit, labelSize: 16,
        }),
      ],
      series: [
        {label: isTime ? "time" : labelX, value: (_, value) => value == null ? "" : formatX(value)},
        ...plot.series.map((each, index) => ({
          label: each.label,
          stroke: () => colour(each.colour),
          fill: plot.kind === "stack" ? () => colour(each.colour) : undefined,
          width: plot.kind === "stack" ? 0 : 1.6,
          dash: plot.kind === "stack" ? [] : DASHES[index % DASHES.length],
          points: {show: plot.kind === "sizes" || each.x.length === 1, size: 6},
          value: (_, value, series, x) => x == null ? "" : at(series, x),
        })),
      ],
      cursor: {y: false, ...(isTime && {sync: {key: "time", setSeries: false}})},
      legend: {
        markers: {width: 3, dash: (_, series) => series > 1 && plot.kind !== "stack" ? "dashed" : "solid"},
      },
      hooks: {
        draw: [...(isTime ? [mark] : []), chart => limits(chart, plot)],
        setSeries: plot.kind !== "stack" ? [] : [(chart, index, changed) => {
          if (changed.show !== undefined)
            chart.setData(stacked(raw, chart.series.slice(1).map(each => each.show)), false);
          chart.redraw();
        }],
      },
    };
  }

  function draw(plot) {
    const figure = document.getElementById(`plot-${plot.name}`);
    const box = figure.querySelector(".plot");
    figure.classList.add("drawn");
    const raw = uPlot.join(plot.series.map(each => [each.x, each.y]));
    const data = plot.kind === "stack" ? stacked(raw, plot.series.map(() => true)) : raw;
    drawn.get(plot.name)?.destroy();
    drawn.set(plot.name, new uPlot(options(plot, box.clientWidth, raw), data, box));
  }

  const narrow = matchMedia("(max-width: 560px)");
  const fold = () => document.querySelectorAll("details.fold").forEach(each => { each.open = !narrow.matches; });
  narrow.addEventListener("change", fold);
  fold();
  plots.forEach(draw);
  document.getElementById("zoom").hidden = false;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(draw));
  const resized = new ResizeObserver(boxes => {
    for (const {target} of boxes) {
      const chart = drawn.get(target.parentElement.id.slice("plot-".length));
      if (chart.width !== target.clientWidth)
        chart.setSize({width: target.clientWidth, height: HEIGHT});
    }
  });
  plots.forEach(plot => resized.observe(document.querySelector(`#plot-${plot.name} .plot`)));
})();
