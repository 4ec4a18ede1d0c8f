// The faults of the dashboard: what is on, and a form for more. On fleet's own page it fills the
// element #fleet-faults; on Locust's it goes below the table of the tab Fleet, where React, which
// draws the tab, leaves what it has not made alone.
"use strict";
(() => {
  const REFRESH_MS = 2000, LOOK_MS = 250;
  const STYLE = `
.fleet-faults{font:14px system-ui,sans-serif;margin:1.5rem 0;color:inherit}
.fleet-faults h2{font-size:1.1rem;margin:0 0 .6rem}
.fleet-faults form{display:flex;flex-wrap:wrap;gap:.6rem 1rem;align-items:end;margin:.8rem 0}
.fleet-faults label{display:flex;flex-direction:column;gap:.2rem;font-size:12px}
.fleet-faults input,.fleet-faults select,.fleet-faults button{font:14px system-ui,sans-serif;
color:inherit;background:transparent;border:1px solid rgba(128,128,128,.6);border-radius:4px;
padding:.35rem .5rem;box-sizing:border-box;max-width:100%}
.fleet-faults option{color:#111;background:#fff}
.fleet-faults button{cursor:pointer;font-weight:600}
.fleet-faults button:disabled{cursor:default;opacity:.4}
.fleet-faults p{margin:.3rem 0;min-height:1.3em;opacity:.8}
.fleet-faults p.bad{color:#d55e00;opacity:1}
.fleet-faults table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.fleet-faults .list{overflow-x:auto}
.fleet-faults td,.fleet-faults th{white-space:nowrap;padding:.4rem .6rem;text-align:left;
border-bottom:1px solid rgba(128,128,128,.35)}
.fleet-faults td:last-child,.fleet-faults th:last-child{text-align:right}`;
  const WHOM = [
    ["zone", "Zone", "all zones", "7rem"], ["nodes", "Nodes", "NAME,NAME,...", "14rem"],
    ["selector", "Labels", "KEY=VALUE,...", "14rem"], ["share", "Share", "100%", "5rem"]];
  const WHEN = [["for", "For", "until healed", "7rem"]];
  const HINTS = {by: "25s", reason: "", message: ""};
  let form = null, on = [], key = "";

  function element(name, text = "", marks = {}) {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [mark, value] of Object.entries(marks)) made.setAttribute(mark, value);
    return made;
  }
  const panel = element("section", "", {class: "fleet-faults", "aria-label": "Faults"});
  const type = element("select", "", {name: "type"}), words = element("p");
  const fields = element("form"), said = element("p", "", {role: "status"});
  const inject = element("button", "Inject", {type: "submit"});
  const table = element("table"), list = element("div", "", {class: "list"});
  const all = element("button", "Heal all", {type: "button"});
  const zones = element("datalist", "", {id: "fleet-zones"});
  list.append(table, zones);
  panel.append(element("style", STYLE), element("h2", "Faults"), list, fields, words, said);

  function field([name, title, hint, width]) {
    const label = element("label", title), choices = form.choices[name];
    const input = element(choices ? "select" : "input", "", {name, placeholder: hint});
    if (choices) {
      input.append(...["", ...choices].map(each => element("option", each || "-", {value: each})));
    }
    else input.style.width = width;
    if (name === "zone") input.setAttribute("list", "fleet-zones");
    label.append(input);
    return label;
  }
  function fill() {
    const kind = form.types.find(each => each.type === type.value), kept = values();
    words.textContent = `${kind.type}: ${kind.words.replaceAll("`", "")}.`;
    const label = element("label", "Fault");
    label.append(type);
    const own = kind.takes.map(each => [
      each, each[0].toUpperCase() + each.slice(1) + (kind.needs.includes(each) ? " *" : ""),
      HINTS[each] ?? "", "8rem"]);
    const shown = [...(kind.hitsNodes ? WHOM : []), ...own, ...(kind.isInstant ? [] : WHEN)];
    fields.replaceChildren(label, ...shown.map(field), inject);
    for (const [name, value] of Object.entries(kept)) {
      const input = fields.elements.namedItem(name);
      if (input && input !== type) input.value = value;
    }
  }
  function values() {
    return Object.fromEntries([...new FormData(fields)].filter(([, value]) => value));
  }
  function say(message, isBad) {
    said.textContent = message;
    said.className = isBad ? "bad" : "";
  }
  function clock(seconds) {
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    return `${minutes}:${String(whole % 60).padStart(2, "0")}`;
  }
  function row(kind, cells) {
    const made = element("tr");
    made.append(...cells.map(each => {
      const cell = element(kind, typeof each === "string" ? each : "");
      if (typeof each !== "string") cell.append(each);
      return cell;
    }));
    return made;
  }
  function showOn() {
    const shown = on.map(each => [
      each.shard, String(each.number), each.fault, each.of ? `${each.nodes} of ${each.of}` : "-",
      clock(each.for_s), each.left_s === null ? "until healed" : clock(each.left_s)]);
    const now = JSON.stringify(shown);
    if (now === key) return;
    key = now;
    table.hidden = !on.length;
    all.disabled = !on.length;
    table.replaceChildren(
      row("th", ["Shard", "Number", "Fault", "Nodes", "On for", "Left", all]),
      ...shown.map((cells, at) => {
        const heal = element("button", "Heal", {type: "button"});
        heal.onclick = () => send("heal", {what: String(on[at].number), shard: on[at].shard});
        return row("td", [...cells, heal]);
      }));
  }
  async function send(what, body) {
    say("...", false);
    inject.disabled = true;
    try {
      const answer = await fetch(`./fleet/faults/${what}`, {
        method: "POST", body: new URLSearchParams(body)});
      const {success, message} = await answer.json();
      say(message, !success);
      if (success) await refresh();
    } catch (error) {
      say(`the dashboard does not answer: ${error.message}`, true);
    } finally {
      inject.disabled = false;
    }
  }
  async function refresh() {
    if (!panel.isConnected) return;
    const found = await (await fetch("./fleet/faults")).json();
    on = found.on;
    zones.replaceChildren(...found.zones.map(each => element("option", "", {value: each})));
    if (form === null) {
      form = found;
      type.append(...form.types.map(each => element("option", each.type)));
      fill();
    }
    showOn();
  }
  function place() {
    const own = document.getElementById("fleet-faults");
    if (own) {
      if (!panel.isConnected) own.append(panel);
      return;
    }
    const tab = [...document.querySelectorAll("[role=tab][aria-selected=true]")]
      .find(each => each.textContent.trim().toLowerCase() === "fleet");
    const grid = tab && document.querySelector("#root table");
    const at = grid && (grid.closest(".MuiContainer-root") ?? grid.parentElement);
    if (!at) panel.remove();
    else if (panel.parentElement !== at) { at.append(panel); refresh().catch(() => {}); }
  }
  type.onchange = fill;
  all.onclick = () => send("heal", {what: ""});
  fields.onsubmit = event => { event.preventDefault(); send("inject", values()); };
  place();
  setInterval(place, LOOK_MS);
  const again = () => refresh().catch(() => {}).finally(() => setTimeout(again, REFRESH_MS));
  again();
})();
