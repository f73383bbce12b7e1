// The live page of a study. Texts of the study get into the document as text alone; charts come from
// the server as SVG in which they are escaped.
"use strict";

const SECONDS_BETWEEN_LOOKS = 3;
const SECONDS_BETWEEN_MODELS = 15;
const ROWS_A_PAGE = 25;
const LONGEST_WORD = 19; // characters that stay in a line: a date with its time
const SVG = "http://www.w3.org/2000/svg";
const find = (selector) => document.querySelector(selector);

function element(name, text, classes) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (classes) made.className = classes;
  return made;
}

function drawn(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const isSmall = Math.abs(value) < 1e-3;
  return isSmall ? value.toExponential(5).replace(/\.?0*e/, "e") : String(Number(value.toPrecision(6)));
}

function duration(seconds) {
  if (seconds < 100) return `${Math.max(seconds, 0).toFixed(0)} s`;
  return seconds < 6000 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(0)} h`;
}

async function get(path) {
  // Not relative to the page, whose address may have a password in it, which `fetch` refuses
  const answer = await fetch(location.origin + path, { cache: "no-store" });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.detail);
  return content;
}

function fill(body, rows) {
  body.replaceChildren(...rows.map((cells) => {
    const line = element("tr");
    line.append(...cells.map(([text, classes]) => element("td", text, classes)));
    return line;
  }));
}

function show(id, chart) {
  const section = find(`#${id}`);
  section.hidden = !chart;
  if (!chart) return;
  const place = section.querySelector(".chart");
  if (place.dataset.drawn !== chart) {
    place.innerHTML = chart;
    place.dataset.drawn = chart;
  }
}

// What is told, and who works

async function look() {
  const state = find("#state");
  try {
    const live = await get("/live");
    document.title = live.name;
    find("#name").textContent = live.name;
    find("#goal").textContent = live.goal;
    const [first, ...rest] = document.querySelectorAll(".finding");
    rest.forEach((tile) => tile.remove());
    first.replaceWith(...Object.entries(live.found).map(tile));
    find("#best-params").textContent = live.best_params ? `Best at ${live.best_params}` : "";
    find("#values").textContent = number(live.num_observations);
    find("#failed").textContent = number(live.num_failed);
    find("#pending").textContent = number(live.num_pending);
    find("#workers").textContent = number(live.num_workers);
    find("#waiting").textContent = number(live.num_waiting);
    show("history", live.history);
    show("front", live.front);
    show("timeline", live.timeline);
    showWorkers(live);
    showFailures(live.failures);
    showLines(live.lines);
    const what = live.trouble ? `The study cannot be asked: ${live.trouble}` : "Live";
    if (state.textContent !== what) state.textContent = what;
    state.classList.toggle("trouble", Boolean(live.trouble));
  } catch (error) {
    const what = `No answer: ${error.message}`;
    if (state.textContent !== what) state.textContent = what;
    state.classList.add("trouble");
  }
}

function showWorkers(live) {
  const section = find("#running");
  const left = live.num_leased - live.workers.length;
  find("#running-note").textContent = live.num_leased
    ? `${number(live.num_leased)} points with ${number(live.num_workers)} workers.${left ? ` ${left} more are not shown.` : ""}`
    : "No worker has a point.";
  section.querySelector(".scroll").hidden = !live.num_leased;
  fill(section.querySelector("tbody"), live.workers.map((one) => [
    [number(one.id), "number"],
    [one.worker, "worker"],
    [duration(one.seconds), "number"],
    [duration(one.left), "number"],
    [one.params, "long"],
  ]));
}

function showFailures(failures) {
  const section = find("#failures");
  section.hidden = !failures.length;
  fill(section.querySelector("tbody"), failures.map(([count, first, reason]) => [
    [number(count), "number"], [number(first), "number"], [reason, "long"],
  ]));
}

async function lookAtModel() {
  try {
    const model = await get("/model");
    show("importances", model.importances);
    show("slices", model.slices);
    show("contour", model.contour);
    find("#slices > .note").textContent = find("#importances > .note").textContent = "";
    find(model.slices ? "#slices > .note" : "#importances > .note").textContent = model.note;
  } catch (error) {
    find("#slices > .note").textContent = error.message;
  }
}

// Parallel coordinates: a range of places on each axis that has been narrowed

const LEAST_GAP = 62; // between axes
const FRAME = { width: 900, left: 60, top: 40, height: 250 };
const ranges = new Map();
let lines = null;
let isDragged = false; // what is drawn stays until then, or the pointer would lose its axis

function showLines(found) {
  if (isDragged) return;
  find("#lines").hidden = !found;
  if (!found || JSON.stringify(found) === JSON.stringify(lines)) return;
  const axesChanged = !lines || JSON.stringify(found.axes.map((a) => a.name)) !== JSON.stringify(lines.axes.map((a) => a.name));
  lines = found;
  FRAME.width = Math.max(900, 2 * FRAME.left + LEAST_GAP * (found.axes.length - 1));
  find("#lines-note").textContent = found.note;
  drawLines();
  if (axesChanged) makeSliders();
  narrow();
}

function across(axis) {
  const gap = (FRAME.width - 2 * FRAME.left) / Math.max(lines.axes.length - 1, 1);
  return FRAME.left + gap * axis;
}

const down = (place) => FRAME.top + FRAME.height * (1 - place);

function drawLines() {
  const picture = find("#parallel");
  picture.style.minWidth = `${(640 * FRAME.width) / 900}px`;
  picture.setAttribute("viewBox", `0 0 ${FRAME.width} ${FRAME.top + FRAME.height + 20}`);
  const parts = [...lines.lines].reverse().map((line) => {
    const points = line.places.map((place, axis) => `${across(axis).toFixed(1)},${down(place).toFixed(1)}`);
    const made = drawn("polyline", { class: line.is, points: points.join(" ") });
    made.append(drawn("title", {}, `row ${line.row}: ${number(line.value)}`));
    return made;
  });
  lines.axes.forEach((axis, position) => {
    const x = across(position);
    parts.push(drawn("line", { class: "axis", x1: x, x2: x, y1: FRAME.top, y2: FRAME.top + FRAME.height }));
    parts.push(drawn("rect", { class: "brush", x: x - 9, width: 18, y: 0, height: 0 }));
    const name = axis.name.length > 14 ? `${axis.name.slice(0, 13)}…` : axis.name;
    const label = drawn("text", { class: "name middle", x, y: 20 }, name);
    label.append(drawn("title", {}, axis.name));
    parts.push(label);
    for (const [place, text] of axis.ticks) {
      parts.push(drawn("text", { class: "tick halo", x: x + 5, y: down(place) + 4 }, text));
    }
    const hit = drawn("rect", { class: "hit", x: x - 14, width: 28, y: FRAME.top - 6, height: FRAME.height + 12 });
    hit.addEventListener("pointerdown", (event) => brush(event, hit, position));
    parts.push(hit);
  });
  picture.replaceChildren(...parts);
}

function brush(event, hit, axis) {
  event.preventDefault();
  const box = find("#parallel").getBoundingClientRect();
  const scale = (FRAME.top + FRAME.height + 20) / box.height;
  const place = (at) => Math.min(1, Math.max(0, 1 - ((at.clientY - box.top) * scale - FRAME.top) / FRAME.height));
  const start = place(event);
  const name = lines.axes[axis].name;
  const move = (at) => {
    const end = place(at);
    ranges.set(name, [Math.min(start, end), Math.max(start, end)]);
    narrow();
  };
  const stop = () => {
    isDragged = false;
    hit.removeEventListener("pointermove", move);
    const [low, high] = ranges.get(name) || [0, 1];
    if (high - low < 0.01) ranges.delete(name); // a click takes the range away
    narrow();
  };
  isDragged = true;
  hit.setPointerCapture(event.pointerId);
  hit.addEventListener("pointermove", move);
  hit.addEventListener("lostpointercapture", stop, { once: true }); // let go, or taken away
  move(event);
}

function makeSliders() {
  find("#sliders").replaceChildren(...lines.axes.map((axis) => {
    const group = element("fieldset");
    group.append(element("legend", axis.name));
    for (const [side, text, start] of [[0, "from", 0], [1, "to", 100]]) {
      const label = element("label", text);
      const slider = element("input");
      Object.assign(slider, { type: "range", min: 0, max: 100, value: start });
      slider.dataset.axis = axis.name;
      slider.dataset.side = side;
      slider.setAttribute("aria-label", `${axis.name} ${text}`);
      slider.addEventListener("input", () => {
        const range = [...(ranges.get(axis.name) || [0, 1])];
        range[side] = slider.value / 100;
        ranges.set(axis.name, range);
        narrow();
      });
      label.append(slider);
      group.append(label);
    }
    return group;
  }));
}

function narrow() {
  const keeps = lines.axes.map((axis) => ranges.get(axis.name) || null);
  const kept = lines.lines.filter((line) => keeps.every((range, axis) =>
    !range || (line.places[axis] >= range[0] - 1e-9 && line.places[axis] <= range[1] + 1e-9)));
  const rows = new Set(kept.map((line) => line.row));
  const drawnLines = find("#parallel").querySelectorAll("polyline");
  [...lines.lines].reverse().forEach((line, position) => {
    drawnLines[position].setAttribute("class", rows.has(line.row) ? line.is : "out");
  });
  find("#parallel").querySelectorAll(".brush").forEach((area, axis) => {
    const range = keeps[axis];
    area.setAttribute("y", range ? down(range[1]) : 0);
    area.setAttribute("height", range ? Math.max(down(range[0]) - down(range[1]), 0) : 0);
  });
  for (const slider of document.querySelectorAll("#sliders input")) {
    const range = ranges.get(slider.dataset.axis) || [0, 1];
    if (document.activeElement !== slider) slider.value = Math.round(100 * range[slider.dataset.side]);
  }
  const some = kept.slice(0, 5).map((line) => line.row).join(", ");
  const text = keeps.some(Boolean)
    ? `${kept.length} of ${lines.lines.length} lines${kept.length ? `; rows ${some}${kept.length > 5 ? ", …" : ""}` : ""}`
    : `${lines.lines.length} lines`;
  if (find("#kept").textContent !== text) find("#kept").textContent = text;
  find("#clear").disabled = !keeps.some(Boolean);
}

find("#clear").addEventListener("click", () => {
  ranges.clear();
  narrow();
});

// Rows, a page at a time

const view = { offset: 0, sort: "", down: true };
let numFound = 0;
let latest = 0;

async function lookAtRows() {
  const request = ++latest;
  const query = new URLSearchParams({
    search: find("#search").value, sort: view.sort, down: view.down, offset: view.offset, limit: ROWS_A_PAGE,
  });
  const said = find("#found");
  try {
    const found = await get(`/rows?${query}`);
    if (request !== latest) return; // a later one was asked for
    numFound = found.num_found;
    showRows(found);
    const text = `${number(found.num_found)} of ${number(found.num_rows)} rows`;
    if (said.textContent !== text) said.textContent = text;
    said.classList.remove("trouble");
  } catch (error) {
    if (request !== latest) return;
    said.textContent = error.message;
    said.classList.add("trouble");
  }
}

function tile([name, value]) {
  const made = element("div");
  made.className = "finding";
  made.append(element("dt", name), element("dd", value));
  return made;
}

function showRows(found) {
  view.sort ||= found.columns[0]; // the ids, the latest first
  const head = find("#rows thead");
  const names = JSON.stringify(found.columns);
  if (head.dataset.names !== names) {
    head.dataset.names = names;
    const line = element("tr");
    line.append(...found.columns.map(sortable));
    head.replaceChildren(line);
  }
  head.querySelectorAll("th").forEach((cell, column) => {
    const isSorted = found.columns[column] === view.sort;
    cell.setAttribute("aria-sort", isSorted ? (view.down ? "descending" : "ascending") : "none");
    cell.className = found.rows.some((row) => typeof row[column] === "number") ? "number" : "";
  });
  fill(find("#rows tbody"), found.rows.map((row) => row.map((cell) => [number(cell), kind(cell)])));
  const pages = Math.max(1, Math.ceil(numFound / ROWS_A_PAGE));
  find("#page").textContent = `page ${number(view.offset / ROWS_A_PAGE + 1)} of ${number(pages)}`;
  find("#previous").disabled = view.offset === 0;
  find("#next").disabled = view.offset + ROWS_A_PAGE >= numFound;
}

function kind(cell) {
  if (typeof cell === "number") return "number";
  return String(cell).length > LONGEST_WORD ? "long" : "word";
}

function sortable(name, column, names) {
  const isTime = ["asked", "told"].includes(name) && !names.includes(`${name}_`); // no parameter
  const cell = element("th");
  cell.scope = "col";
  const button = element("button", isTime ? `${name} (UTC)` : name);
  button.type = "button";
  button.addEventListener("click", () => {
    view.down = view.sort === name ? !view.down : false;
    view.sort = name;
    view.offset = 0;
    lookAtRows();
  });
  cell.append(button);
  return cell;
}

function turn(pages) {
  view.offset = Math.max(0, view.offset + pages * ROWS_A_PAGE);
  lookAtRows();
}

let typing = 0;
find("#search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    view.offset = 0;
    lookAtRows();
  }, 250);
});
find("#find").addEventListener("submit", (event) => {
  event.preventDefault();
  view.offset = 0;
  lookAtRows();
});
find("#previous").addEventListener("click", () => turn(-1));
find("#next").addEventListener("click", () => turn(1));

// Again and again, while somebody looks

async function repeat(action, seconds) {
  if (!document.hidden) await action();
  setTimeout(() => repeat(action, seconds), 1000 * seconds);
}

repeat(look, SECONDS_BETWEEN_LOOKS);
repeat(lookAtModel, SECONDS_BETWEEN_MODELS);
repeat(() => (view.offset === 0 ? lookAtRows() : null), SECONDS_BETWEEN_LOOKS);
