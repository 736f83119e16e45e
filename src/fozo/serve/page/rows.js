// Rows: what the server told of each camera, in words, curves and pictures.

const POINTS = 120, EVENTS = 50, LATEST = 3;
const SILENCE = 25_000; // ms without a byte: the server sends something every 10 s
const SILENT = 60; // seconds without an image that are worth saying
const REFRESH = 2_000; // ms between two frames of a camera
const STATES = ["fault", "silent", "drift", "warning", "fine", "unwatched"]; // the worst first
const NAMES = { fault: "fault", silent: "silent", drift: "drift", warning: "warning", fine: "fine", unwatched: "not watched" };
const TROUBLE = new Set(["fault", "silent", "drift", "warning"]);

const $ = (id) => document.getElementById(id);
const cameras = new Map(); // by model and camera: what the server told, and the row that shows it
const view = { state: "all", words: "", sort: "trouble" };
let ahead = 0; // ms by which the server's clock is ahead of this device's
let unsorted = false; // whether states have changed since the last order
let stale = false; // whether a new order waits for the finger to go
let drawn = false; // whether the next frame draws already

// Words and numbers.

const distance = (x) => (x === null ? "–" : x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x >= 0.1 ? x.toFixed(2) : x.toFixed(3));
const percent = (x) => (x === null ? "–" : `${Math.round(100 * x)} %`);
const count = (n, thing) => `${n.toLocaleString("en")} ${thing}${n === 1 ? "" : "s"}`;
const day = (date) => date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
const clock = (seconds) => {
  const date = new Date(1000 * seconds);
  const hour = date.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const today = date.toDateString() === new Date(Date.now() + ahead).toDateString();
  return (today ? hour : `${day(date)} ${hour}`).replaceAll(" ", "\u00a0"); // stays on one line
};
const period = (seconds) =>
  seconds < 100 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
const local = (text) => text.replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)Z/g, (all, date, hour) => clock(Date.parse(`${date}T${hour}Z`) / 1000));
const called = (told) => (told.camera === "" ? "without a sequence_id" : told.camera);

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, text, name) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (name) element.className = name;
  return element;
}

// What the server tells.

function take(message) {
  ahead = 1000 * message.time - Date.now();
  if (message.all) {
    const left = new Set(message.all.map((key) => JSON.stringify(key)));
    for (const [key, camera] of cameras) {
      if (left.has(key)) continue;
      eye.unobserve(camera.row);
      camera.row.remove();
      cameras.delete(key);
    }
  }
  let changed = Boolean(message.all);
  for (const told of message.cameras) {
    const key = JSON.stringify([told.model, told.camera]);
    let camera = cameras.get(key);
    const known = camera !== undefined;
    if (!known) cameras.set(key, (camera = { ...row(), points: [], events: [], sight: false, pictured: 0, asked: 0 }));
    if (!known || camera.told.state !== told.state) {
      changed = true;
      if (known) tell(told);
    }
    if (told.fresh) Object.assign(camera, { points: [], events: [], pictured: 0 });
    for (const point of told.points) {
      if (camera.points.at(-1)?.[0] === point[0]) camera.points.pop(); // the same point, drawn higher
      camera.points.push(point);
    }
    camera.points.splice(0, camera.points.length - POINTS);
    camera.events.push(...told.events);
    camera.events.splice(0, camera.events.length - EVENTS);
    camera.news ||= !known || told.fresh || told.events.length > 0;
    camera.told = told;
    camera.unsaid = camera.undrawn = true;
    if (!known) {
      camera.row.camera = camera;
      $("rows").append(camera.row);
      eye.observe(camera.row);
    }
  }
  put($("note"), message.limit ? `Only ${message.limit} cameras are shown; there are more.` : "");
  $("note").hidden = !message.limit;
  unsorted ||= changed;
  if (changed) chips(); // also where nothing is drawn, as in a tab behind others: the title tells
  later();
}

// Drawing: once a frame. Words are for all rows, curves and pictures for those in sight.

const eye = new IntersectionObserver((seen) => {
  for (const one of seen) one.target.camera.sight = one.isIntersecting;
  later();
}, { rootMargin: "200px" });

function later() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    if (unsorted) arrange();
    for (const camera of cameras.values()) {
      if (camera.unsaid) write(camera);
      if (camera.undrawn && camera.sight) draw(camera);
    }
  });
}

function row() {
  const line = $("row").content.firstElementChild.cloneNode(true);
  const find = (selector) => line.querySelector(selector);
  return {
    row: line, badge: find(".badge"), name: find(".name"), model: find(".model"), seen: find(".seen"),
    drift: find("td.drift"), accuracy: find("td.accuracy"), sentence: find(".sentence"), latest: find(".latest"),
    details: find("details"), expect: find(".expect"), figures: line.querySelectorAll("figure"),
  };
}

function write(camera) {
  const { told, drift, accuracy } = camera;
  camera.unsaid = false;
  camera.row.dataset.state = told.state;
  put(camera.badge, NAMES[told.state]);
  put(camera.name, called(told));
  put(camera.model, told.model);
  age(camera);
  put(drift.querySelector("b"), distance(told.drift));
  put(drift.querySelector(".aside"), told.drift !== null ? "of the threshold" : "");
  const unit = told.relative ? " of clean" : "";
  put(accuracy.querySelector("b"), told.accuracy === null ? "unknown" : percent(told.accuracy) + unit);
  put(accuracy.querySelector(".aside"), told.low !== null && told.high !== null ? `${Math.round(100 * told.low)} to ${percent(told.high)}` : "");
  put(camera.sentence, local(told.sentence || "not watched: the server has no reference of clean images for this model"));
  camera.expect.hidden = told.state !== "fault" && told.state !== "drift";
  camera.expect.onclick = () => expect(camera);
  if (camera.news) list(camera);
  if (told.frames) document.body.classList.add("pictured"); // a column more
}

function draw(camera) {
  camera.undrawn = false;
  const drifts = camera.points.filter((point) => point[1] !== null);
  const top = 1.15 * Math.max(1, ...drifts.map((point) => point[1]));
  curve(camera.drift, drifts, (point) => point[1], top);
  line(camera.drift, ".threshold", drifts, () => 1, top);
  const sure = camera.points.filter((point) => point[2] !== null);
  curve(camera.accuracy, sure, (point) => point[2], 1);
  band(camera.accuracy, sure.filter((point) => point[3] !== null && point[4] !== null));
  frame(camera);
}

function age(camera) {
  const quiet = (Date.now() + ahead) / 1000 - camera.told.time;
  const silent = camera.told.gone || quiet > SILENT;
  put(camera.seen, `${count(camera.told.images, "image")}, ${silent ? "silent since " : ""}${clock(camera.told.time)}`);
  camera.row.classList.toggle("silent", silent);
}

const across = (points) => {
  const from = points[0][0], width = points.at(-1)[0] - from;
  return (point) => (width > 0 ? (193 * (point[0] - from)) / width + 1 : 194);
};
const down = (value, top) => 44 - (40 * Math.min(Math.max(value, 0), top)) / top;
const path = (points, x, y) => points.map((point, i) => `${i ? "L" : "M"}${x(point).toFixed(1)} ${y(point).toFixed(1)}`).join("");

function line(cell, name, points, value, top, all = points) {
  const element = cell.querySelector(name);
  element.setAttribute("d", points.length ? path(points, across(all), (point) => down(value(point), top)) : "");
}

function curve(cell, points, value, top) {
  line(cell, ".line", points, value, top);
  const end = points.length ? `M194 ${down(value(points.at(-1)), top).toFixed(1)}h0` : ""; // a dot, whatever the scale
  cell.querySelector(".end").setAttribute("d", end);
  cell.classList.toggle("none", !points.length);
  const span = points.length > 1 ? points.at(-1)[0] - points[0][0] : 0;
  put(cell.querySelector(".span"), span > 0 ? `last ${period(span)}` : "");
  const all = points.map(value);
  const say = cell === cell.closest("tr").camera.drift ? distance : percent;
  cell.querySelector("svg").setAttribute("aria-label", points.length ? `from ${say(Math.min(...all))} to ${say(Math.max(...all))}` : "not known");
}

function band(cell, points) {
  let shape = "";
  if (points.length > 1) {
    const x = across(points);
    shape = path(points, x, (point) => down(point[4], 1)) + path([...points].reverse(), x, (point) => down(point[3], 1)).replace("M", "L") + "Z";
  }
  cell.querySelector(".band").setAttribute("d", shape);
}

function list(camera) {
  camera.news = false;
  const newest = [...camera.events].reverse();
  const item = ([time, image, name, text], whole) => {
    const entry = document.createElement("li");
    const when = make("time", clock(time));
    when.dateTime = new Date(1000 * time).toISOString();
    entry.append(when, " ", make("b", name), ` at image\u00a0${image.toLocaleString("en")}`);
    if (whole) entry.append(`: ${local(text)}`);
    return entry;
  };
  camera.latest.replaceChildren(...newest.slice(0, LATEST).map((event) => item(event, false)));
  camera.details.hidden = !newest.length;
  put(camera.details.querySelector("summary"), newest.length === 1 ? "The event in full" : `${newest.length} events in full`);
  camera.details.querySelector("ol").replaceChildren(...newest.map((event) => item(event, true)));
}

async function expect({ told, expect: button }) {
  button.disabled = true;
  const path = `v2/models/${encodeURIComponent(told.model)}/mark/expected?${new URLSearchParams({ sequence_id: told.camera })}`;
  try { await fetch(path, { method: "POST", headers: headers() }); } catch { /* the stream tells that the connection is lost */ }
  button.disabled = false;
}

async function frame(camera) {
  const { told } = camera;
  if (!told.frames || told.frames === camera.pictured || !camera.sight || camera.asking) return;
  const wait = camera.asked + REFRESH - Date.now();
  if (wait > 0) {
    camera.timer ||= setTimeout(() => { camera.timer = 0; frame(camera); }, wait);
    return;
  }
  Object.assign(camera, { asking: true, asked: Date.now(), pictured: told.frames });
  try {
    const query = new URLSearchParams({ model: told.model, camera: told.camera });
    const response = await fetch(`frames?${query}`, { headers: headers(), cache: "no-store" });
    if (response.ok) {
      const pictures = await response.json();
      [pictures.before, pictures.after].forEach((jpeg, i) => {
        const figure = camera.figures[i], image = figure.querySelector("img");
        figure.hidden = !jpeg;
        if (!jpeg) return image.removeAttribute("src");
        image.src = `data:image/jpeg;base64,${jpeg}`;
        image.alt = `Last frame of ${called(told)}${i ? ", equalised" : ""}`;
      });
    }
  } catch { /* the stream tells that the connection is lost */ }
  camera.asking = false;
  if (camera.told.frames !== camera.pictured) frame(camera);
}
