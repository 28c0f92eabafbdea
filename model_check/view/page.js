// Draws what can be seen of the data and a little around it with the page's figures, and moves the drawing as long as
// what is seen lies within it. Times are numbers of moments from 0; on the axis a moment stands at its number + 1.
"use strict";
(async () => {
const letters = atob(document.getElementById("data").textContent), packed = new Uint8Array(letters.length);
for (let i = 0; i < letters.length; i++) packed[i] = letters.charCodeAt(i);
const D = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
const N = D.lane.length, ROW_PX = 22, MOMENT_PX = 30, HATCHES = 7;
const at = (id) => document.getElementById(id);
const text = (place) => D.texts[place];

// ---- the data, indexed
const first = [0]; // of each strip: the place of its first piece
for (const [, , count] of D.strips) first.push(first[first.length - 1] + count);
const next = new Array(N), previous = new Array(N), parity = new Array(N); // in the same lane
{
  const last = D.lanes.map(() => -1), then = D.lanes.map(() => N);
  for (let i = 0; i < N; i++) {
    previous[i] = last[D.lane[i]];
    parity[i] = previous[i] < 0 ? 0 : 1 - parity[previous[i]];
    last[D.lane[i]] = i;
  }
  for (let i = N - 1; i >= 0; i--) { next[i] = then[D.lane[i]]; then[D.lane[i]] = i; }
}
const failing = D.failure && D.failure.at !== null ? D.failure.at : -1;

function pieceAt(row, moment) { // the first piece of a strip that ends behind a moment
  let low = first[row], high = first[row + 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (D.stop[middle] > moment) high = middle; else low = middle + 1;
  }
  return low;
}

// ---- what is seen, what is drawn, what is selected
let seen = {start: 0.5, span: 8, top: -0.5}, drawn = null;
let selected = null, touched = new Set(), shown = D.strips.map((_, row) => row);
let time, rows, width, allRows, seenRows, views = {}, sources = {};

const escaped = (words) => words.replace(/[&<>]/g, (sign) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[sign]);
const clamp = (value, low, high) => Math.max(Math.min(value, high), low);

function faded(color, alpha) {
  return alpha === 1 ? color : color + Math.round(alpha * 255).toString(16).padStart(2, "0");
}

function describe(i) {
  const fails = i === failing ? "\n✗ fails here" : "";
  const notes = D.notes[i].slice(0, 7).map((note) => "\n" + text(note)).join("");
  return escaped(`${D.number[i]}: ${text(D.action[i])} — ${D.lanes[D.lane[i]][0]}${fails}${notes}`);
}

const pen = document.createElement("canvas").getContext("2d"), widths = new Map();
pen.font = "11px system-ui, sans-serif";
function widthOf(words) {
  if (!widths.has(words)) widths.set(words, pen.measureText(words).width + 4);
  return widths.get(words);
}

function fitted(words, px) {
  const all = widthOf(words), letters = Math.floor(px / all * words.length);
  if (all <= px) return words;
  return letters < 4 ? "" : words.slice(0, letters - 2) + "…";
}

const columns = (...names) => Object.fromEntries(names.map((name) => [name, []]));
const bars = () => columns("y", "left", "right", "fill", "says");
const outlines = () => columns("y", "left", "right");
const labels = () => columns("x", "y", "text", "alpha");
function add(to, ...values) { Object.keys(to).forEach((name, place) => to[name].push(values[place])); }

function drawLanes(lo, hi, unit) {
  const plain = bars(), failed = bars(), spans = bars(), said = labels(), chosen = outlines();
  for (let i = lo; i <= hi; i++) {
    const lane = D.lane[i], name = (i === failing ? "✗ " : "") + text(D.action[i]), gap = (next[i] - i) * unit;
    const alpha = selected === null || i === selected || i === failing ? 1 : 0.55;
    add(i === failing ? failed : plain, lane, i + 0.55, i + 1.45, faded(i === failing ? "#f08a80" : D.lanes[lane][1], alpha), describe(i));
    // what does not fit before the lane's next moment stands above or below, in turn
    const aside = widthOf(name) > gap;
    const room = (aside ? (next[i] < N ? next[next[i]] : N + 9) : next[i]) - i;
    const words = fitted(name, Math.min(room, 14) * unit);
    if (words) add(said, i + 0.5, lane + (aside ? (parity[i] ? 0.36 : -0.34) : 0), words, Math.max(alpha, 0.75));
    if (i === selected) add(chosen, lane, i + 0.55, i + 1.45);
  }
  for (const [lane, begin, end, what] of D.spans)
    if (end >= lo && begin <= hi)
      add(spans, lane, begin + 1, end + 1, "#9aa3ad", `${D.lanes[lane][0]} ${text(what)}: ${D.number[begin]} to ${D.number[end]}`);
  Object.assign(sources.events, {data: plain}); Object.assign(sources["failed events"], {data: failed});
  Object.assign(sources.spans, {data: spans}); Object.assign(sources["event labels"], {data: said});
  Object.assign(sources["selected event"], {data: chosen});
}

function drawStrips(lo, hi, from, to, unit) {
  const drawnBars = Array.from({length: HATCHES}, bars), said = labels(), chosen = outlines();
  for (let y = from; y <= to; y++) {
    const row = shown[y], soft = selected === null || touched.has(row) ? 1 : 0.4;
    for (let piece = pieceAt(row, lo); piece < first[row + 1] && D.start[piece] <= hi; piece++) {
      const [, fill, hatch] = D.states[D.state[piece]], label = text(D.label[piece]);
      const left = Math.max(D.start[piece], lo - 1) + 0.5, right = Math.min(D.stop[piece], hi + 2) + 0.5;
      const ends = `from ${D.number[D.start[piece]]} to ${D.number[D.stop[piece] - 1]}`;
      add(drawnBars[hatch], y, left, right, faded(fill, soft), escaped(`${D.strips[row][1]}\n${label}\n${ends}`));
      for (let x = left; x < right; x += seen.span / 2) { // said again, so that it is in view wherever the window is
        const words = fitted(label, Math.min(right - x, seen.span / 2) * unit);
        if (words) add(said, x, y, words, soft === 1 ? 1 : 0.6);
      }
      if (soft === 1 && selected !== null && D.start[piece] <= selected && selected <= D.stop[piece]) add(chosen, y, left, right);
    }
  }
  drawnBars.forEach((data, hatch) => { sources["pieces" + hatch].data = data; });
  sources["piece labels"].data = said;
  sources["touched pieces"].data = chosen;
}

function pieceRange(start, span) { return [Math.max(0, Math.floor(start) - 1), Math.min(N - 1, Math.ceil(start + span))]; }

// Draws twice the window, and moves it into place. Bokeh takes data in promises: it draws when they are kept, at once
// for both figures and together with the move.
let drawing = false;
async function draw() {
  if (drawing) return;
  drawing = true;
  const unit = width / seen.span, start = seen.start - seen.span / 2, tall = views.strips.frame.bbox.height / ROW_PX;
  const top = seen.top - (tall - seenRows) / 2, span = 2 * seen.span, both = [views.lanes, views.strips], marked = selected;
  const lo = Math.max(0, Math.floor(start) - 1), hi = Math.min(N - 1, Math.ceil(start + span));
  drawn = {start, span, top, tall, unit};
  both.forEach((view) => view.pause());
  time.setv({start, end: start + span});
  rows.setv({start: top + tall, end: top});
  drawLanes(lo, hi, unit);
  drawStrips(lo, hi, Math.max(0, Math.floor(top)), Math.min(shown.length - 1, Math.ceil(top + tall)), unit);
  await new Promise((kept) => setTimeout(kept));
  both.forEach((view) => { view.unpause(true); view.repaint(); });
  for (const [name, moment] of [["failing", failing], ["current", marked ?? -1]])
    document.querySelectorAll(`.tile .band.${name}`).forEach((band) => {
      Object.assign(band.style, {display: moment < 0 ? "none" : "block", left: `${(moment + 0.5 - start) * unit}px`, width: `${unit}px`});
    });
  drawing = false;
  if (drawn !== null) place();
  moved();
}

function place() {
  const across = (drawn.start - seen.start) * drawn.unit, down = (drawn.top - seen.top) * ROW_PX;
  at("lanes-plot").firstElementChild.style.transform = `translate(${across}px, 0)`;
  at("strips-plot").firstElementChild.style.transform = `translate(${across}px, ${down}px)`;
  const band = document.querySelector("#overview-plot .window");
  Object.assign(band.style, {display: "block", left: `${(seen.start - 0.5) / N * 100}%`, width: `${seen.span / N * 100}%`});
  nameRows();
}

function show() {
  if (drawing) return;
  const within = drawn !== null && Math.abs(width / seen.span - drawn.unit) < 1e-6 && seen.start >= drawn.start &&
    seen.start + seen.span <= drawn.start + drawn.span && seen.top >= drawn.top && seen.top + seenRows <= drawn.top + drawn.tall + 0.01;
  if (within) place(); else draw();
}

let due = false;
function moved() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; show(); });
}

function nameRows() {
  const box = at("strip-names"), from = Math.max(0, Math.round(seen.top)), to = Math.min(shown.length, Math.ceil(seen.top + seenRows + 0.5));
  while (box.children.length < to - from) box.append(document.createElement("div"));
  [...box.children].forEach((each, place) => {
    const y = from + place, row = shown[y];
    each.hidden = y >= to;
    if (each.hidden) return;
    if (each.title !== D.strips[row][1]) each.textContent = each.title = D.strips[row][1];
    each.className = touched.has(row) ? "touched" : "";
    each.style.transform = `translateY(${(y - seen.top - 0.5) * ROW_PX + 3}px)`;
  });
}

function overview() {
  const buckets = Math.min(N, 200), counts = D.lanes.map(() => new Float64Array(buckets)), data = columns("y", "left", "right", "fill");
  for (let i = 0; i < N; i++) counts[D.lane[i]][Math.floor(i * buckets / N)]++;
  const most = Math.max(...counts.map((each) => Math.max(...each)));
  counts.forEach((each, lane) => each.forEach((count, bucket) => {
    if (count) add(data, lane + 0.5, bucket * N / buckets + 0.5, (bucket + 1) * N / buckets + 0.5, faded("#4d6a8f", 0.25 + 0.74 * count / most));
  }));
  sources.density.data = data;
  const band = document.querySelector("#overview-plot .failing");
  if (failing >= 0) Object.assign(band.style, {display: "block", left: `${failing / N * 100}%`, width: `max(${100 / N}%, 4px)`});
}

// ---- moving
function goTo(start, span = seen.span) {
  seen.span = clamp(span, 6, Math.max(N + 2, 6));
  seen.start = clamp(start, 0.5, Math.max(N + 2.5 - seen.span, 0.5)); // room for the last one's name
  moved();
}
function scrollTo(top) {
  seen.top = clamp(top, -0.5, Math.max(shown.length - 0.5 - seenRows, -0.5));
  moved();
}
const zoom = (by, around = seen.start + seen.span / 2) => goTo(around - (around - seen.start) * by, seen.span * by);

function reveal(i) {
  const x = (i + 1 - seen.start) / seen.span;
  if (x < 0.04 || x > 0.96) goTo(i + 1 - seen.span / 2);
  const ys = [...touched].map((row) => shown.indexOf(row)).filter((y) => y >= 0);
  if (ys.length && !ys.some((y) => y - 0.5 >= seen.top && y + 0.5 <= seen.top + seenRows)) scrollTo(Math.min(...ys) - 2.5);
}

// ---- selecting
function select(i) {
  selected = i === null ? null : clamp(i, 0, N - 1);
  touched = new Set(selected === null ? [] : D.touches[selected]);
  const only = at("only").checked && touched.size > 0;
  shown = only ? [...touched].sort((a, b) => a - b) : D.strips.map((_, row) => row);
  seenRows = Math.min(allRows, Math.max(shown.length, 1));
  at("strips-plot").style.height = `${seenRows * ROW_PX}px`;
  scrollTo(seen.top);
  if (selected !== null) reveal(selected);
  drawn = null;
  detail();
}

const step = (by) => select(selected === null ? Math.max(Math.round(seen.start) - 1, 0) : selected + by);
function stepInLane(by) {
  if (selected === null) return step(by);
  const to = (by > 0 ? next : previous)[selected];
  if (to >= 0 && to < N) select(to);
}

function change(row) {
  const piece = pieceAt(row, selected), there = piece < first[row + 1] && D.start[piece] <= selected;
  const now = there ? text(D.label[piece]) : "gone";
  if (there && D.start[piece] !== selected) return now;
  const before = piece - 1 >= first[row] && D.stop[piece - 1] === selected ? text(D.label[piece - 1]) : "nothing";
  return `${before} → ${now}`;
}

function element(tag, words, name = "") { return Object.assign(document.createElement(tag), {textContent: words, className: name}); }
function list(title, lines) {
  const items = element("ul", "");
  items.append(...lines.map((line) => element("li", line)));
  return lines.length ? [element("h3", title), items] : [];
}

function detail() {
  if (selected === null) {
    at("detail").replaceChildren(element("h2", "No step is selected"), element("p", "Click a step, or go from one to the next with the arrow keys."));
    return;
  }
  const lane = D.lanes[D.lane[selected]][0], thread = text(D.thread[selected]);
  const told = [...touched].slice(0, 60).map((row) => `${D.strips[row][1]}: ${change(row)}`);
  if (touched.size > told.length) told.push(`and ${touched.size - told.length} more`);
  const parts = [element("h2", `${D.number[selected]} of ${N}: ${text(D.action[selected])}`),
                 element("div", lane === thread ? lane : `${lane} (thread ${thread})`, "about")];
  if (selected === failing) parts.push(element("p", "✗ " + D.failure.what, "bad"));
  parts.push(...list("What it did", D.notes[selected].map(text)), ...list(`What it touched (${touched.size})`, told));
  if (D.backTo !== null && selected === N - 1) parts.push(element("p", `and goes on as from step ${D.number[D.backTo]}, for ever`));
  at("detail").replaceChildren(...parts);
}

// ---- keys, clicks, the wheel
function toggle() { at("only").checked = !at("only").checked; select(selected); }
const KEYS = {
  ArrowLeft: (event) => event.shiftKey ? stepInLane(-1) : step(-1),
  ArrowRight: (event) => event.shiftKey ? stepInLane(1) : step(1),
  ArrowUp: () => scrollTo(seen.top - 3), ArrowDown: () => scrollTo(seen.top + 3),
  Home: () => select(0), End: () => select(N - 1),
  PageUp: () => goTo(seen.start - seen.span), PageDown: () => goTo(seen.start + seen.span),
  f: () => failing >= 0 && select(failing), t: toggle, "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4),
  Escape: () => select(null),
};

function clicked(name, x, down) {
  let moment = clamp(Math.round(seen.start + x / width * seen.span) - 1, 0, N - 1);
  if (name === "strips") { // a piece leads to the moment that began it
    const row = shown[Math.round(seen.top + down / ROW_PX)], piece = row === undefined ? -1 : pieceAt(row, moment);
    if (piece >= 0 && piece < first[row + 1] && D.start[piece] <= moment) moment = D.start[piece];
  }
  select(moment);
}

function listen(name) {
  const plot = at(name + "-plot");
  let drag = null;
  plot.addEventListener("pointerdown", (event) => { drag = {x: event.clientX, y: event.clientY, start: seen.start, top: seen.top, far: false}; }, true);
  window.addEventListener("pointerup", () => setTimeout(() => { drag = null; }));
  window.addEventListener("pointermove", (event) => {
    if (drag === null || !event.buttons) return;
    drag.far ||= Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 4;
    if (!drag.far) return;
    goTo(drag.start - (event.clientX - drag.x) / width * seen.span);
    if (name === "strips") scrollTo(drag.top - (event.clientY - drag.y) / ROW_PX);
  });
  plot.addEventListener("click", (event) => {
    const box = plot.getBoundingClientRect();
    if (!drag?.far) clicked(name, event.clientX - box.left - 1, event.clientY - box.top - 1);
  });
  plot.addEventListener("wheel", (event) => {
    event.preventDefault();
    event.stopPropagation();
    const by = event.deltaY || event.deltaX, x = event.clientX - plot.getBoundingClientRect().left;
    if (event.ctrlKey) zoom(by > 0 ? 1.2 : 1 / 1.2, seen.start + x / width * seen.span);
    else if (name === "strips" && !event.shiftKey && event.deltaY) scrollTo(seen.top + by / ROW_PX);
    else goTo(seen.start + by / width * seen.span);
  }, {passive: false, capture: true});
}

function listenToAll() {
  const buttons = {first: KEYS.Home, last: KEYS.End, previous: () => step(-1), next: () => step(1), in: KEYS["+"], out: KEYS["-"], "to-failing": KEYS.f};
  for (const [id, does] of Object.entries(buttons)) at(id)?.addEventListener("click", does);
  at("only").addEventListener("change", () => select(selected));
  document.addEventListener("keydown", (event) => {
    const does = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!does || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    does(event);
  });
  const whole = at("overview-plot");
  const jump = (event) => {
    const box = whole.getBoundingClientRect();
    goTo(0.5 + (event.clientX - box.left) / box.width * N - seen.span / 2);
  };
  whole.addEventListener("pointerdown", (event) => { whole.setPointerCapture(event.pointerId); jump(event); });
  whole.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
  for (const name of ["lanes", "strips"]) listen(name);
}

// ---- the start
function nameLanes() {
  const frame = views.lanes.frame.bbox;
  at("lane-names").replaceChildren(...D.lanes.map(([name], lane) => {
    const made = element("div", name);
    made.style.top = `${frame.top + (lane + 0.5) * frame.height / D.lanes.length - 9}px`;
    return made;
  }));
}

function resized() {
  const before = width;
  width = at("lanes-plot").clientWidth;
  drawn = null;
  goTo(seen.start, before ? seen.span * width / before : Math.max(width / MOMENT_PX, 8));
}

async function start() {
  const doc = Bokeh.documents[0];
  for (const model of doc._all_models.values()) if (model.type === "ColumnDataSource") sources[model.name] = model;
  time = doc.get_model_by_name("time");
  rows = doc.get_model_by_name("rows");
  allRows = seenRows = at("strips-plot").clientHeight / ROW_PX;
  nameLanes();
  overview();
  resized();
  listenToAll();
  select(failing >= 0 ? failing : null);
  new ResizeObserver(() => { if (at("lanes-plot").clientWidth !== width) resized(); }).observe(at("lanes-plot"));
  await draw();
  requestAnimationFrame(() => requestAnimationFrame(() => {
    // for a console, a test or a benchmark
    window.palimpsest = {painted: performance.now(), goTo, scrollTo, select, drawing: () => drawing || due,
                         seen: () => ({...seen, selected, touched: [...touched], rows: shown.length})};
  }));
}

function whenReady() {
  const doc = window.Bokeh?.documents[0];
  for (const name of ["overview", "lanes", "strips"]) {
    const model = doc?.get_model_by_name(name);
    views[name] = model && Bokeh.index.find_one(model);
  }
  if (Object.values(views).every((view) => view?.frame?.bbox.width > 0)) start(); else requestAnimationFrame(whenReady);
}
whenReady();
})();
