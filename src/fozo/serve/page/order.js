// Order and filters. Rows move only when a state changes, and never under a finger.

let moved = 0, touched = 0; // a pointer that was left on a row of a wall's screen is nobody's
const move = () => { moved = Date.now(); };
const touch = () => { touched = Date.now(); };
const within = () => $("rows").matches(":hover") || $("rows").contains(document.activeElement);
const busy = () => Date.now() - touched < 3000 || (Date.now() - moved < 20_000 && within());

const orders = {
  trouble: (a, b) => STATES.indexOf(a.told.state) - STATES.indexOf(b.told.state),
  name: () => 0,
  drift: (a, b) => (b.told.drift ?? -1) - (a.told.drift ?? -1),
  accuracy: (a, b) => (a.told.accuracy ?? 2) - (b.told.accuracy ?? 2),
};
const words = new Intl.Collator(undefined, { numeric: true });
const byName = (a, b) => words.compare(a.told.camera, b.told.camera) || words.compare(a.told.model, b.told.model);

function arrange(asked = false) {
  unsorted = false;
  stale = !asked && busy() && $("rows").childElementCount > 0;
  if (!stale) {
    const sorted = [...cameras.values()].sort((a, b) => orders[view.sort](a, b) || byName(a, b));
    let place = $("rows").firstElementChild;
    const focused = document.activeElement;
    for (const { row } of sorted) {
      if (row === place) place = place.nextElementSibling;
      else $("rows").insertBefore(row, place);
    }
    if ($("rows").contains(focused)) focused.focus({ preventScroll: true }); // which a row loses when it is moved
  }
  let shown = 0;
  for (const camera of cameras.values()) {
    if (!stale) camera.row.hidden = !wanted(camera.told);
    shown += !camera.row.hidden;
  }
  $("resort").hidden = !stale;
  $("empty").hidden = shown > 0;
  put($("empty"), cameras.size ? "No camera is like that." : "No camera has sent an image yet.");
}

function wanted(told) {
  if (view.state !== "all" && told.state !== view.state) return false;
  const text = `${called(told)} ${told.model} ${told.sentence} ${NAMES[told.state]}`.toLowerCase();
  return view.words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function chips() {
  const counts = { all: cameras.size };
  for (const state of STATES) counts[state] = 0;
  for (const { told } of cameras.values()) counts[told.state] += 1;
  for (const chip of $("chips").children) {
    const { state } = chip.dataset;
    chip.hidden = state === "unwatched" && !counts.unwatched && view.state !== state;
    chip.setAttribute("aria-pressed", String(view.state === state));
    put(chip.querySelector("b"), String(counts[state]));
  }
  const troubled = STATES.reduce((sum, state) => sum + (TROUBLE.has(state) ? counts[state] : 0), 0);
  document.title = `${troubled ? `(${troubled}) ` : ""}Cameras - fozo`;
}

for (const state of ["all", ...STATES]) {
  const chip = make("button", NAMES[state] ?? "all", "chip");
  chip.type = "button";
  chip.dataset.state = state;
  chip.append(" ", document.createElement("b"));
  chip.addEventListener("click", () => { view.state = view.state === state ? "all" : state; chips(); arrange(true); });
  $("chips").append(chip);
}
$("find").addEventListener("input", () => { view.words = $("find").value.trim(); arrange(true); });
$("sort").addEventListener("change", () => { view.sort = $("sort").value; arrange(true); });
$("resort").addEventListener("click", () => arrange(true));
$("rows").addEventListener("touchstart", touch, { passive: true });
addEventListener("touchmove", touch, { passive: true });
for (const kind of ["pointermove", "pointerdown", "wheel", "keydown"]) addEventListener(kind, move, { passive: true });
addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, select, dialog")) {
    event.preventDefault();
    $("find").focus();
  } else if (event.key === "Escape" && event.target === $("find")) {
    $("find").value = view.words = "";
    arrange(true);
  }
});
setInterval(() => {
  if (stale && !busy()) arrange();
  for (const camera of cameras.values()) if (camera.sight) age(camera);
}, 1000);
addEventListener("beforeprint", () => {
  put($("printed"), new Date().toLocaleString());
  for (const camera of cameras.values()) {
    if (camera.unsaid) write(camera);
    if (camera.undrawn) draw(camera);
  }
});

// Changes of state, said aloud: a few at a time.

const news = [];
function tell(told) {
  if (!news.length) setTimeout(say, 1500);
  news.push(told);
}
function say() {
  const each = news.map((told) => `${called(told)}: ${NAMES[told.state]}`);
  put($("said"), news.length > 3 ? `${news.length} cameras changed: ${each.slice(0, 3).join("; ")}; and others` : news.map((told, i) => `${each[i]}. ${local(told.sentence)}`).join(" "));
  news.length = 0;
}
