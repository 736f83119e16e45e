// The connection. An EventSource could not send a token, so the stream is read by fetch.

const TOKEN = "fozo-token";
let token = null;
try { token = sessionStorage.getItem(TOKEN); } catch { /* a browser that keeps nothing: it is asked for again */ }
const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});
let hurry = () => {};

function linked(state, text) {
  $("link").dataset.state = state;
  put($("link"), text);
  document.body.classList.toggle("stale", state === "lost");
}

async function stream() {
  const control = new AbortController();
  let timer = setTimeout(() => control.abort(), SILENCE);
  try {
    const response = await fetch("events", { headers: { Accept: "text/event-stream", ...headers() }, cache: "no-store", signal: control.signal });
    if (response.status === 401 || response.status === 403) return "token";
    if (!response.ok) return (await response.json().catch(() => null))?.error ?? `the server answered ${response.status}`;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "";
      clearTimeout(timer);
      timer = setTimeout(() => control.abort(), SILENCE);
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").find((text) => text.startsWith("data: "));
        if (data) take(JSON.parse(data.slice(6)));
      }
      linked("live", "live");
    }
  } catch {
    return "";
  } finally {
    clearTimeout(timer);
    control.abort();
  }
}

function ask() {
  linked("token", "token needed");
  put($("refused"), token ? "The server refused this token." : "");
  $("ask").showModal();
  return new Promise((resolve) => {
    $("ask").oncancel = (event) => event.preventDefault();
    $("ask-form").onsubmit = (event) => {
      event.preventDefault();
      const given = $("token").value.trim();
      if (!/^[\x20-\x7e]+$/.test(given)) return put($("refused"), "A token has plain letters, digits and signs only.");
      token = given;
      try { sessionStorage.setItem(TOKEN, token); } catch { /* as above */ }
      $("token").value = "";
      $("ask").close();
      resolve();
    };
  });
}

async function run() {
  for (let failures = 0; ; ) {
    const why = await stream();
    if (why === "token") {
      await ask();
      continue;
    }
    failures = $("link").dataset.state === "live" ? 1 : failures + 1;
    linked("lost", `connection lost${why ? ` (${why})` : ""}, retrying`);
    const pause = Math.min(15_000, 500 * 2 ** failures) * (0.75 + Math.random() / 2);
    await new Promise((resolve) => {
      hurry = resolve;
      setTimeout(resolve, pause);
    });
  }
}
addEventListener("online", () => hurry());
document.addEventListener("visibilitychange", () => { if (!document.hidden) hurry(); });
chips();
run();
