// SPDX-License-Identifier: GPL-2.0-or-later
// Draws the page from the data in it. What users wrote is shown with textContent and fillText only, never as markup.
"use strict";
(() => {
  const $ = id => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  // Columns of data.jobs. Times are tenths of seconds since data.start; durations are seconds.
  const [ID, NAME, USER, STATE, GPUS, WEIGHT, SUBMIT, START, END, WAITED, RUN, GPU_TIME, SHARE, SLICES, SUSPENDS, MOVES, STEP, STEPS,
    REASON, SIZES, PACKS, TRIALS, GAIN] = Array.from({ length: 23 }, (_, index) => index);
  const { jobs, gpus, gangs, slices } = data;
  const HOST = 1, GUEST = 2;  // of slices.part: a packed job, and one that joined it
  const SPAN = (data.end - data.start) * 10;
  const PALETTE = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#b0a000", "#7b5ea7"];
  const OTHERS = "#8a939d";
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // -- words ---------------------------------------------------------------------------------------

  function element(name, text = "", className = "") {
    const made = document.createElement(name);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  }
  const two = number => String(number).padStart(2, "0");
  function duration(seconds) {
    if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
    const whole = Math.round(seconds), days = Math.floor(whole / 86400);
    const clock = `${two(Math.floor(whole / 3600) % 24)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
    return days ? `${days}-${clock}` : clock;
  }
  // The clock of the cluster, wherever the page is read.
  function offset(tenths) {  // seconds east of UTC
    let found = data.zones[0][1];
    for (const [from, seconds] of data.zones) if (from <= tenths) found = seconds;
    return found;
  }
  const date = tenths => new Date(Math.round((data.start + tenths / 10 + offset(tenths)) * 1000));
  const day = tenths => date(tenths).toISOString().slice(0, 10);
  const time = tenths => date(tenths).toISOString().slice(11, 19);
  const moment = tenths => `${day(tenths)} ${time(tenths)}`;
  const gpuName = gpu => `${gpu[0]}:${gpu[1]}`;
  function gangName(gang) {
    const nodes = new Map();
    for (const index of gang) nodes.set(gpus[index][0], [...(nodes.get(gpus[index][0]) || []), gpus[index][1]]);
    return [...nodes].slice(0, 8).map(([node, numbers]) => `${node}:${numbers.join(",")}`).join(" ") + (nodes.size > 8 ? " …" : "");
  }

  // -- colours -------------------------------------------------------------------------------------

  let colouring = data.colourings[0];  // null: every job has a colour of its own
  const labelColour = (label, which) => which.labels[label] === "others" ? OTHERS : PALETTE[label % PALETTE.length];
  const jobColour = job => {
    const hue = job * 137.508 % 360, part = n => (n + hue / 30) % 12;
    const channel = n => Math.round(255 * (.5 - .27 * Math.max(-1, Math.min(part(n) - 3, 9 - part(n), 1))));
    return "#" + [0, 8, 4].map(n => channel(n).toString(16).padStart(2, "0")).join("");
  };
  function sliceColour(slice) {
    return colouring ? labelColour(colouring.of[slices[colouring.by][slice]], colouring) : jobColour(slices.job[slice]);
  }
  const inks = new Map();
  function ink(colour) {  // for text on a block
    if (!inks.has(colour)) {
      const [r, g, b] = [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
      inks.set(colour, .299 * r + .587 * g + .114 * b > 140 ? "#000" : "#fff");
    }
    return inks.get(colour);
  }

  // -- which jobs ----------------------------------------------------------------------------------

  const chosen = new Uint8Array(jobs.length).fill(1);
  function choose() {
    const word = $("find").value.trim().toLowerCase(), user = $("user").value, state = $("state").value;
    const exact = /^\d+(_\d+)?$/.test(word);
    let count = 0;
    jobs.forEach((job, index) => {
      const found = !word || job[ID] === word || job[NAME].toLowerCase().includes(word)
        || (!exact && job[USER].toLowerCase().includes(word));
      count += chosen[index] = found && (!user || job[USER] === user) && (!state || job[STATE].split(" ")[0] === state) ? 1 : 0;
    });
    $("shown").textContent = count < jobs.length ? `${count} of ${jobs.length} jobs` : "";
    drawSoon();
    fillTable();
  }
  function find(word) {
    $("find").value = word;
    choose();
  }

  // -- the timeline --------------------------------------------------------------------------------

  const canvas = $("time"), scroll = $("scroll"), AXIS = 22;
  const view = { from: 0, to: SPAN };
  const rows = gpus.map(() => []);
  for (let slice = 0; slice < slices.job.length; slice++) for (const gpu of gangs[slices.gang[slice]]) rows[gpu].push(slice);
  let heights = "fair", rowHeight = 20, tops = [], total = 0, gutter = 60, printing = false, selected = null;

  function lay() {
    const room = Math.max(240, innerHeight * .62) - AXIS;
    const fair = gpus.length <= 16 ? 24 : gpus.length <= 64 ? 16 : 11;
    const least = Math.min(fair, room / Math.max(1, gpus.length));
    rowHeight = { fair, tall: 24, all: Math.max(1, Math.floor(least)) }[heights];
    const gap = rowHeight > 8 ? 6 : rowHeight > 2 ? 2 : 0;
    let y = 4;
    tops = gpus.map((gpu, index) => {
      if (index && gpus[index - 1][0] !== gpu[0]) y += gap;
      return (y += rowHeight) - rowHeight;
    });
    total = y + 4;
    $("tall").style.height = `${total + AXIS}px`;
    const height = printing ? total + AXIS : Math.min(total, room) + AXIS;
    scroll.style.height = `${height + 2}px`;
    size(canvas, height);
    size($("use"), 110);
    const longest = gpus.reduce((most, gpu) => Math.max(most, gpu[0].length), 2);
    gutter = Math.min(150, longest * 7 + 34);
  }
  function size(which, height) {
    const scale = devicePixelRatio || 1;
    which.style.height = `${height}px`;
    which.cssWidth = which.clientWidth;
    which.cssHeight = height;
    which.width = Math.round(which.cssWidth * scale);
    which.height = Math.round(height * scale);
    which.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
  }
  const plotWidth = () => canvas.cssWidth - gutter - 2;
  const xOf = tenths => gutter + (tenths - view.from) / (view.to - view.from) * plotWidth();
  const timeOf = x => view.from + (x - gutter) / plotWidth() * (view.to - view.from);

  function firstAfter(row, tenths) {  // index of the first slice that ends after a time
    let low = 0, high = row.length;
    while (low < high) {
      const middle = low + high >> 1;
      if (slices.from[row[middle]] < tenths) low = middle + 1; else high = middle;
    }
    while (low > 0 && slices.to[row[low - 1]] > tenths) low--;
    return low;
  }

  function draw() {
    const pen = canvas.getContext("2d"), width = canvas.cssWidth, height = canvas.cssHeight, top = printing ? 0 : scroll.scrollTop;
    const colours = { card: css("--card"), text: css("--text"), dim: css("--dim"), empty: css("--empty"), line: css("--line") };
    pen.fillStyle = colours.card;
    pen.fillRect(0, 0, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS, width, height - AXIS);
    pen.clip();
    pen.textBaseline = "middle";
    for (let gpu = 0; gpu < gpus.length; gpu++) {
      const y = tops[gpu] + AXIS - top;
      if (y + rowHeight < AXIS || y > height) continue;
      drawLabels(pen, gpu, y, colours);
      pen.fillStyle = colours.empty;
      pen.fillRect(gutter, y, plotWidth(), rowHeight > 3 ? rowHeight - 1 : rowHeight);
      drawRow(pen, rows[gpu], y, colours);
    }
    if (selected) {
      pen.strokeStyle = colours.text;
      pen.lineWidth = 2;
      const x = xOf(slices.from[selected.slice]);
      pen.strokeRect(x, tops[selected.gpu] + AXIS - top - 1, Math.max(3, xOf(slices.to[selected.slice]) - x), rowHeight + 1);
    }
    pen.restore();
    drawAxis(pen, colours);
    drawUse();
  }
  function drawLabels(pen, gpu, y, colours) {
    const [node, ordinal] = gpus[gpu], first = !gpu || gpus[gpu - 1][0] !== node;
    pen.font = "12px system-ui, sans-serif";
    pen.fillStyle = colours.text;
    pen.textAlign = "left";
    if (first) {
      let end = gpu;
      while (end + 1 < gpus.length && gpus[end + 1][0] === node) end++;
      const block = tops[end] + rowHeight - tops[gpu];
      if (block >= 11) pen.fillText(node, 6, y + Math.min(block / 2, Math.max(rowHeight / 2, 7)), gutter - 28);
    }
    if (rowHeight < 10) return;
    pen.fillStyle = colours.dim;
    pen.textAlign = "right";
    pen.fillText(String(ordinal), gutter - 8, y + rowHeight / 2);
  }
  function drawRow(pen, row, y, colours) {
    const high = rowHeight > 3 ? rowHeight - 1 : rowHeight, half = high >> 1;
    drawSlices(pen, row, y, high, colours, false);
    if (half) drawSlices(pen, row, y + high - half, half, colours, true);  // guests: the lower half of their hosts
  }
  function drawSlices(pen, row, y, high, colours, guests) {
    const right = gutter + plotWidth();
    let painted = gutter - 1;
    for (let at = firstAfter(row, view.from); at < row.length; at++) {
      const slice = row[at], part = slices.part[slice];
      if (slices.from[slice] >= view.to) break;
      if ((part === GUEST) !== guests) continue;
      const left = Math.max(gutter, xOf(slices.from[slice])), end = Math.min(right, xOf(slices.to[slice]));
      if (end - painted < .5) continue;  // this pixel has its colour: 100,000 blocks cost no more than there are pixels
      painted = end;
      const colour = sliceColour(slice), wide = Math.max(1, end - left);
      pen.globalAlpha = chosen[slices.job[slice]] ? 1 : .13;
      pen.fillStyle = colour;
      pen.fillRect(left, y, wide, high);
      if (wide > 5) {  // a switch
        pen.fillStyle = colours.card;
        pen.fillRect(end - 1, y, 1, high);
      }
      if (wide > 34 && rowHeight >= (part ? 20 : 14)) {
        const job = jobs[slices.job[slice]], middle = part === HOST ? high / 4 : high / 2;
        pen.font = `${part ? 9 : 11}px system-ui, sans-serif`;
        pen.fillStyle = ink(colour);
        pen.textAlign = "left";
        const words = `${job[ID]} ${job[NAME]}`, letters = Math.floor((wide - 8) / 6);
        pen.fillText(words.length > letters ? words.slice(0, Math.max(1, letters - 1)) + "…" : words, left + 4, y + middle, wide - 6);
      }
    }
    pen.globalAlpha = 1;
  }
  const STEPS_OF_AXIS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
  function ticks(from, to, most) {  // [tenths, words]
    const step = 10 * (STEPS_OF_AXIS.find(s => (to - from) / 10 / s <= most) || 31536000);
    const zero = (data.start + offset(from)) * 10, found = [];
    for (let even = Math.ceil((from + zero) / step) * step - zero; even <= to; even += step) {
      // Midnight is at midnight behind a change of the clocks, too.
      const t = step > 36000 ? even + (offset(from) - offset(even)) * 10 : even;
      found.push([t, step >= 864000 ? day(t).slice(5) : time(t) === "00:00:00" && step >= 600 ? day(t).slice(5) : step < 600 ? time(t) : time(t).slice(0, 5)]);
    }
    return found;
  }
  function drawAxis(pen, colours) {
    pen.fillStyle = colours.card;
    pen.fillRect(0, 0, canvas.cssWidth, AXIS);
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    for (const [t, words] of ticks(view.from, view.to, plotWidth() / 90)) {
      const x = xOf(t);
      pen.fillStyle = colours.dim;
      if (x > gutter + 18 && x < canvas.cssWidth - 22) pen.fillText(words, x, AXIS / 2);
      pen.fillStyle = colours.line;
      pen.fillRect(x, AXIS - 5, 1, 5);
    }
    pen.fillRect(gutter, AXIS - 1, plotWidth(), 1);
  }

  // -- the overview --------------------------------------------------------------------------------

  const use = $("use");
  function drawUse(drag) {
    const pen = use.getContext("2d"), width = use.cssWidth, height = use.cssHeight, base = height - 16;
    const series = data.in_use[Math.max(0, data.colourings.indexOf(colouring))], bins = series[0] ? series[0].length : 0;
    const most = Math.max(1, gpus.length), x = bin => Math.round(gutter + bin / bins * plotWidth());
    const dim = css("--dim"), line = css("--line");
    pen.fillStyle = css("--card");
    pen.fillRect(0, 0, width, height);
    const below = new Float64Array(bins);
    series.forEach((values, label) => {
      pen.fillStyle = colouring ? labelColour(label, colouring) : css("--accent");
      for (let bin = 0; bin < bins; bin++) {
        const tall = values[bin] / most * (base - 4);
        if (tall > 0) pen.fillRect(x(bin), base - below[bin] - tall, x(bin + 1) - x(bin), tall);
        below[bin] += tall;
      }
    });
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = dim;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.fillText(String(gpus.length), gutter - 8, 8);
    pen.fillText("0", gutter - 8, base - 2);
    pen.textAlign = "center";
    for (const [t, words] of ticks(0, SPAN, plotWidth() / 90)) {
      const at = gutter + t / SPAN * plotWidth();
      if (at > gutter + 18 && at < width - 20) pen.fillText(words, at, height - 7);
    }
    pen.fillStyle = line;
    pen.fillRect(gutter, base, plotWidth(), 1);
    const [from, to] = drag || [view.from, view.to];
    if (!drag && to - from >= SPAN) return;
    const left = gutter + from / SPAN * plotWidth(), right = gutter + to / SPAN * plotWidth();
    pen.fillStyle = css("--card");
    pen.globalAlpha = .6;
    pen.fillRect(gutter, 0, left - gutter, base);
    pen.fillRect(right, 0, gutter + plotWidth() - right, base);
    pen.globalAlpha = 1;
    pen.strokeStyle = css("--text");
    pen.lineWidth = 1.5;
    pen.strokeRect(left, 1, Math.max(2, right - left), base - 1);
  }
  function useTime(event) {
    const at = (event.clientX - use.getBoundingClientRect().left - gutter) / plotWidth();
    return Math.max(0, Math.min(SPAN, at * SPAN));
  }
  let brushFrom = null;
  use.addEventListener("pointerdown", event => {
    brushFrom = useTime(event);
    use.setPointerCapture(event.pointerId);
  });
  use.addEventListener("pointermove", event => {
    const now = useTime(event);
    if (brushFrom !== null) return drawUse([Math.min(brushFrom, now), Math.max(brushFrom, now)]);
    const which = colouring || data.colourings[0], series = data.in_use[data.colourings.indexOf(which)];
    const bin = Math.min(series[0] ? series[0].length - 1 : 0, Math.floor(now / SPAN * (series[0] || []).length));
    const parts = series.map((values, label) => [values[bin], which.labels[label]]).filter(([value]) => value > 0);
    const sum = parts.reduce((all, [value]) => all + value, 0);
    showTip(event.clientX, event.clientY, [`${moment(now)}: ${sum.toFixed(1)} GPUs`], parts.map(([value, label]) => `${label}: ${value.toFixed(1)}`));
  });
  use.addEventListener("pointerup", event => {
    const now = useTime(event), from = Math.min(brushFrom, now), to = Math.max(brushFrom, now), half = (view.to - view.from) / 2;
    brushFrom = null;
    if ((to - from) / SPAN * use.cssWidth > 4) setView(from, to); else setView(now - half, now + half);
  });
  use.addEventListener("pointerleave", () => { $("tip").hidden = true; });

  // -- moving about --------------------------------------------------------------------------------

  function setView(from, to) {
    const span = Math.max(20, Math.min(SPAN, to - from));
    view.from = Math.max(0, Math.min(SPAN - span, from + (to - from - span) / 2));
    view.to = view.from + span;
    drawSoon();
  }
  function zoom(factor, around = (view.from + view.to) / 2) {
    const span = Math.max(20, Math.min(SPAN, (view.to - view.from) * factor)), part = (around - view.from) / (view.to - view.from);
    setView(around - part * span, around + (1 - part) * span);
  }
  const pan = part => setView(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));
  let asked = false;
  function drawSoon() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  }
  function at(event) {  // the block under the pointer
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top - AXIS + scroll.scrollTop;
    if (event.clientY - box.top < AXIS || x < gutter) return null;
    const gpu = tops.findIndex(top => y >= top && y < top + rowHeight);
    if (gpu < 0) return null;
    const slack = 2 / plotWidth() * (view.to - view.from), now = timeOf(x), found = [];
    for (let i = firstAfter(rows[gpu], now - slack); i < rows[gpu].length && slices.from[rows[gpu][i]] <= now + slack; i++) {
      if (slices.to[rows[gpu][i]] >= now - slack) found.push(rows[gpu][i]);
    }
    const lower = y >= tops[gpu] + rowHeight / 2, wanted = found.find(slice => (slices.part[slice] === GUEST) === lower);
    return found.length ? { gpu, slice: wanted ?? found[0] } : null;
  }
  let drag = null;
  canvas.addEventListener("pointerdown", event => {
    drag = { x: event.clientX, y: event.clientY, from: view.from, top: scroll.scrollTop, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    if (!drag) return hover(event);
    const dx = event.clientX - drag.x, span = view.to - view.from;
    drag.moved ||= Math.abs(dx) + Math.abs(event.clientY - drag.y) > 4;
    if (!drag.moved) return;
    $("tip").hidden = true;
    const from = drag.from - dx / plotWidth() * span;
    setView(from, from + span);
    scroll.scrollTop = drag.top - (event.clientY - drag.y);
  });
  canvas.addEventListener("pointerup", event => {
    const block = drag && !drag.moved ? at(event) : null;
    if (drag && !drag.moved) find(block ? jobs[slices.job[block.slice]][ID] : "");
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
  canvas.addEventListener("dblclick", event => zoom(.4, timeOf(event.clientX - canvas.getBoundingClientRect().left)));
  canvas.addEventListener("wheel", event => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 250), timeOf(event.clientX - canvas.getBoundingClientRect().left));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 600);
    else return;  // the page scrolls
    event.preventDefault();
  }, { passive: false });
  scroll.addEventListener("scroll", drawSoon, { passive: true });

  function select(gpu, slice) {
    selected = { gpu, slice };
    const span = view.to - view.from, from = slices.from[slice], to = slices.to[slice];
    if (from < view.from || to > view.to) setView((from + to - Math.max(span, 1.2 * (to - from))) / 2, (from + to + Math.max(span, 1.2 * (to - from))) / 2);
    const room = canvas.cssHeight - AXIS - rowHeight;
    scroll.scrollTop = Math.max(tops[gpu] - room, Math.min(scroll.scrollTop, tops[gpu]));
    const box = canvas.getBoundingClientRect(), words = blockWords(gpu, slice);
    showTip(box.left + Math.max(gutter, xOf((from + to) / 2)), box.top + AXIS + tops[gpu] - scroll.scrollTop + rowHeight, ...words);
    $("told").textContent = words.flat().join(". ");
    drawSoon();
  }
  function step(by) {
    const row = selected ? rows[selected.gpu] : rows.find(one => one.length);
    if (!row) return;
    const gpu = selected ? selected.gpu : rows.indexOf(row);
    let index = selected ? row.indexOf(selected.slice) + by : firstAfter(row, view.from);
    while (index >= 0 && index < row.length && !chosen[slices.job[row[index]]]) index += by;
    if (row[index] !== undefined) select(gpu, row[index]);
  }
  function climb(by) {
    if (!selected) return step(1);
    const middle = (slices.from[selected.slice] + slices.to[selected.slice]) / 2;
    for (let gpu = selected.gpu + by; gpu >= 0 && gpu < gpus.length; gpu += by) {
      const row = rows[gpu], index = Math.min(row.length - 1, firstAfter(row, middle));
      if (row.length) return select(gpu, row[index]);
    }
  }
  const KEYS = {
    "+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1 / .6), "0": () => setView(0, SPAN), "r": () => nextHeight(),
    "ArrowLeft": e => e.shiftKey ? pan(-.2) : step(-1), "ArrowRight": e => e.shiftKey ? pan(.2) : step(1),
    "ArrowUp": () => climb(-1), "ArrowDown": () => climb(1),
    "Enter": () => selected && find(jobs[slices.job[selected.slice]][ID]),
    "Escape": () => { selected = null; $("tip").hidden = true; find(""); },
  };
  canvas.addEventListener("keydown", event => {
    if (!KEYS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    KEYS[event.key](event);
    event.preventDefault();
  });
  canvas.addEventListener("blur", () => { selected = null; $("tip").hidden = true; drawSoon(); });
  function nextHeight() {
    heights = { fair: "all", all: "tall", tall: "fair" }[heights];
    lay();
    drawSoon();
  }

  // -- what a block says ---------------------------------------------------------------------------

  function blockWords(gpu, slice) {
    const job = jobs[slices.job[slice]], from = slices.from[slice], to = slices.to[slice], seconds = (to - from) / 10;
    const steps = job[STEP] ? `, about ${Math.round(seconds / job[STEP])} mini-batches here` : "";
    const done = job[STEPS] ? `, ${job[STEPS]} in all` : "";
    const next = rows[gpu].find(other => other !== slice && slices.from[other] >= to);
    const beside = rows[gpu].filter(other => other !== slice && slices.from[other] < to && slices.to[other] > from);
    const names = [...new Set(beside.map(other => jobs[slices.job[other]]))].map(other => `job ${other[ID]} (${other[USER]})`);
    const packed = names.length ? [`Beside it: ${names.join(", ")}`] : [];
    const gain = job[GAIN] === null ? [] : [`Gain of its last trial: ${job[GAIN].toFixed(2)}x`];
    const why = slices.why[slice] < 0 ? "It is still there." : `It ended there: ${data.reasons[slices.why[slice]] || "no reason was recorded"}`;
    const then = next === undefined ? [] : [`Then here: job ${jobs[slices.job[next]][ID]} (${jobs[slices.job[next]][USER]}), after ${duration((slices.from[next] - to) / 10)}`];
    return [[`Job ${job[ID]} ${job[NAME]}`], [
      `${job[USER]}, ${job[STATE]}, weight ${job[WEIGHT]}, ${job[GPUS]} GPU${job[GPUS] === 1 ? "" : "s"}${steps}${done}`,
      `On ${gangName(gangs[slices.gang[slice]])}${gpus[gpu][2] ? ` (${gpus[gpu][2]})` : ""}`,
      `${moment(from)} to ${time(to)} (${duration(seconds)})`, ...packed, ...gain, ...then], [why]];
  }
  function showTip(x, y, heads, lines, why = []) {
    const tip = $("tip");
    tip.replaceChildren(...heads.map(text => element("b", text)), ...lines.map(text => element("span", text)), ...why.map(text => element("span", text, "why")));
    tip.hidden = false;
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? Math.max(4, y - tip.offsetHeight - 12) : y + 18}px`;
  }
  function hover(event) {
    const block = at(event);
    canvas.style.cursor = block ? "pointer" : "";
    if (!block) { $("tip").hidden = true; return; }
    showTip(event.clientX, event.clientY, ...blockWords(block.gpu, block.slice));
  }

  // -- plots of waiting ----------------------------------------------------------------------------

  function shape(name, attributes, title = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (title) made.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "title"), { textContent: title }));
    return made;
  }
  function words(text, x, y, anchor) {
    const made = shape("text", { x, y, "text-anchor": anchor });
    made.textContent = text;
    return made;
  }
  const WIDE = 640, HIGH = 190, LEFT = 40, BASE = HIGH - 22;
  function plot(parent, label, most) {
    const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label });
    const digits = most < 10 && most % 1 ? 1 : 0;
    for (const part of [0, .5, 1]) {
      const y = BASE - part * (BASE - 16);
      svg.append(shape("line", { x1: LEFT, x2: WIDE, y1: y, y2: y, class: "axis" }));
      if (part !== .5 || most >= 2) svg.append(words((part * most).toFixed(digits), LEFT - 6, y + 4, "end"));
    }
    parent.replaceChildren(svg);
    return { svg, y: value => BASE - value / most * (BASE - 16) };
  }
  function drawWaiting() {
    const { queue, turn } = data.waiting, bins = queue.length;
    const most = Math.max(1, Math.ceil(Math.max(...queue.map((value, bin) => value + turn[bin]))));
    const { svg, y } = plot($("waiting"), `Jobs that wait over time, at most ${most}`, most);
    const x = bin => LEFT + bin / bins * (WIDE - LEFT);
    const area = (low, high) => high.map((value, bin) => `${bin ? "L" : "M"}${x(bin).toFixed(1)},${y(value).toFixed(1)}H${x(bin + 1).toFixed(1)}`).join("")
      + low.map((value, bin) => `L${x(bin + 1).toFixed(1)},${y(value).toFixed(1)}H${x(bin).toFixed(1)}`).reverse().join("") + "Z";
    const none = queue.map(() => 0), sum = queue.map((value, bin) => value + turn[bin]);
    svg.append(shape("path", { d: area(none, queue), fill: "var(--queue)" }), shape("path", { d: area(queue, sum), fill: "var(--turn)" }));
    for (const [t, text] of ticks(0, SPAN, 7)) {
      const at = LEFT + t / SPAN * (WIDE - LEFT);
      if (at > LEFT + 14 && at < WIDE - 18) svg.append(words(text, at, HIGH - 6, "middle"));
    }
    legend($("wait-legend"), [["for their start", "var(--queue)"], ["for their turn", "var(--turn)"]]);
  }
  function drawSpread() {
    const names = ["< 10 s", "< 1 min", "< 5 min", "< 15 min", "< 1 h", "< 4 h", "< 12 h", "< 1 d", "longer"];
    const { started, waits_on: waits } = data.waiting, most = Math.max(1, ...started.map((count, index) => count + waits[index]));
    const { svg, y } = plot($("spread"), `Waiting times: ${names.map((name, index) => `${name}: ${started[index] + waits[index]}`).join(", ")}`, most);
    const wide = (WIDE - LEFT) / names.length;
    names.forEach((name, index) => {
      const x = LEFT + index * wide + 6, mid = LEFT + (index + .5) * wide, sum = started[index] + waits[index];
      svg.append(shape("rect", { x, y: y(started[index]), width: wide - 12, height: BASE - y(started[index]), fill: "var(--accent)" }, `${started[index]} jobs started after ${name}`));
      svg.append(shape("rect", { x, y: y(sum), width: wide - 12, height: y(started[index]) - y(sum), fill: "var(--queue)" }, `${waits[index]} jobs have waited ${name}`));
      svg.append(words(name, mid, HIGH - 6, "middle"));
      if (sum) svg.append(words(String(sum), mid, Math.max(9, y(sum) - 3), "middle"));
    });
    legend($("spread-legend"), [["started", "var(--accent)"], ["still waiting", "var(--queue)"]]);
  }
  function legend(list, entries) {
    list.replaceChildren(...entries.map(([text, colour]) => {
      const item = element("li"), patch = element("i");
      patch.style.background = colour;
      item.append(patch, text);
      return item;
    }));
  }

  // -- the table -----------------------------------------------------------------------------------

  const FIRST_ROWS = 100;
  const COLUMNS = [  // heading, value to sort by, text, class
    ["Job", job => job[ID], null, "left"],
    ["Name", job => job[NAME], null, "left name"],
    ["User", job => job[USER], null, "left"],
    ["State", job => job[STATE], null, "left"],
    ["GPUs", job => job[GPUS]],
    ["Weight", job => job[WEIGHT]],
    ["Submitted", job => job[SUBMIT], job => moment(job[SUBMIT]).slice(5)],
    ["Waited", job => job[WAITED], job => duration(job[WAITED])],
    ["On GPUs", job => job[RUN], job => duration(job[RUN])],
    ["Share", job => job[SHARE] ?? -1, job => job[SHARE] === null ? "" : `${(100 * job[SHARE]).toFixed(1)} %`],
    ["GPU time", job => job[GPU_TIME], job => duration(job[GPU_TIME])],
    ["Slices", job => job[SLICES]],
    ["Suspends", job => job[SUSPENDS]],
    ["Moves", job => job[MOVES]],
    ["Sizes", job => job[SIZES]],
    ["Packs", job => job[PACKS]],
    ["Trials", job => job[TRIALS]],
    ["Gain", job => job[GAIN] ?? -1, job => job[GAIN] === null ? "" : `${job[GAIN].toFixed(2)}x`],
    ["Mini-batch", job => job[STEP] ?? -1, job => job[STEP] ? `${Number(job[STEP].toPrecision(3))} s` : ""],
    ["Last reason", job => job[REASON], null, "long"],
  ];
  let order = { column: 6, down: false }, allRows = false;
  const collator = new Intl.Collator("en", { numeric: true });
  COLUMNS.forEach(([title, , , kind], column) => {
    const head = element("th", "", kind ? "left" : ""), button = element("button", title);
    head.scope = "col";
    button.addEventListener("click", () => {
      order = { column, down: order.column === column ? !order.down : !kind };
      fillTable();
    });
    head.append(button);
    $("head").append(head);
  });
  function fillTable() {
    const [, value] = COLUMNS[order.column], shown = jobs.filter((_, index) => chosen[index]);
    const compare = (a, b) => typeof a === "number" ? a - b : collator.compare(a, b);
    shown.sort((a, b) => (order.down ? -1 : 1) * compare(value(a), value(b)));
    [...$("head").children].forEach((head, column) => {
      head.setAttribute("aria-sort", column === order.column ? order.down ? "descending" : "ascending" : "none");
    });
    $("body").replaceChildren(...shown.slice(0, allRows ? undefined : FIRST_ROWS).map(job => {
      const line = document.createElement("tr");
      COLUMNS.forEach(([title, get, text, kind], column) => {
        const cell = element("td", column ? String(text ? text(job) : get(job)) : "", kind || "");
        if (column === 1) cell.title = job[NAME];
        if (!column) {
          const button = element("button", job[ID]);
          button.title = "Show this job alone";
          button.addEventListener("click", () => { find(job[ID]); canvas.scrollIntoView({ block: "center" }); });
          cell.append(button);
        }
        line.append(cell);
      });
      return line;
    }));
    $("more").hidden = allRows || shown.length <= FIRST_ROWS;
    $("more").textContent = `Show all ${shown.length}`;
  }

  // -- putting it together -------------------------------------------------------------------------

  function options(list, first, values) {
    list.replaceChildren(...[[first, ""], ...values.map(value => [value, value])].map(([text, value]) => Object.assign(element("option", text), { value })));
  }
  function recolour() {
    const index = Number($("colour").value);
    colouring = index < 0 ? null : data.colourings[index];
    legend($("legend"), colouring ? colouring.labels.map((text, label) => [text, labelColour(label, colouring)]) : []);
    drawSoon();
  }
  function redraw() {
    lay();
    draw();
  }
  const utc = seconds => `UTC${seconds < 0 ? "-" : "+"}${two(Math.floor(Math.abs(seconds) / 3600))}:${two(Math.floor(Math.abs(seconds) / 60) % 60)}`;
  const clocks = [...new Set([offset(0), offset(SPAN)])].map(utc).join(", then ");
  $("span").textContent = `${moment(0)} to ${moment(SPAN)} (${clocks}), made ${moment((data.made - data.start) * 10)}`;
  $("notices").replaceChildren(...data.notices.map(text => element("li", text)));
  $("tiles").replaceChildren(...data.tiles.map(([name, value, remark]) => {
    const tile = element("div");
    tile.append(element("dt", name), element("dd", value, "value"), element("dd", remark, "dim"));
    return tile;
  }));
  $("colour").replaceChildren(...[...data.colourings.map((one, index) => [one.name, index]), ["job", -1]].map(([text, value]) => Object.assign(element("option", text), { value })));
  options($("user"), "all", [...new Set(jobs.map(job => job[USER]))].sort(collator.compare));
  options($("state"), "all", [...new Set(jobs.map(job => job[STATE].split(" ")[0]))].sort());
  for (const id of ["find", "user", "state"]) $(id).addEventListener("input", choose);
  $("colour").addEventListener("input", recolour);
  $("in").addEventListener("click", () => zoom(.5));
  $("out").addEventListener("click", () => zoom(2));
  $("all").addEventListener("click", () => setView(0, SPAN));
  $("rows").addEventListener("click", nextHeight);
  $("more").addEventListener("click", () => { allRows = true; fillTable(); });
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", event => { printing = event.matches; redraw(); });
  document.querySelector("main").hidden = false;
  lay();
  recolour();
  drawWaiting();
  drawSpread();
  choose();
  draw();
  document.documentElement.dataset.drawn = "yes";
})();
