"use strict";
(() => {
  const TABS = [["learning", "Learning"], ["privacy", "Privacy"], ["operation", "Operation"]];
  const SILENT_SECONDS = 4; // the worker sends a message every second
  const KEPT = 480;
  const embedded = document.getElementById("data");
  const $ = (id) => document.getElementById(id);

  // State of the connection and data.
  const lanes = new Map();
  let meta = { apps: {}, process: {}, series: {}, public: false };
  let offset = 0; // of the worker's clock
  let heard = 0, dead = null, source = null, ready = false, recorded = false, polling = false;

  // State of the view.
  let tab = "learning", chosen = "", panels = {}, live = [], charts = [], shownAlarms = "";

  // Words and numbers

  function h(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((c) => c !== null && c !== undefined));
    return node;
  }
  // Text, with the parts between backticks as code.
  const typed = (words) => words.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
  const known = (v) => v !== null && v !== undefined && !Number.isNaN(v);
  const or = (format) => (v) => (known(v) ? format(v) : "–");
  const count = or((v) => Math.round(v).toLocaleString("en-GB"));
  const fixed = (digits) => or((v) => v.toFixed(digits));
  const signed = (v) => (v === 0 ? "0" : Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6 ? v.toExponential(2).replace("e-", "e−") : v.toPrecision(4));
  const four = or((v) => signed(v).replace(/^-/, "−"));
  const bytes = or((v) => (v < 1000 ? `${v} B` : v < 1e6 ? `${(v / 1e3).toFixed(1)} kB` : `${(v / 1e6).toFixed(1)} MB`));
  const plain = or((v) => four(Number(v.toPrecision(4))).replace(/(\.\d*?)0+(?=e|$)/, "$1").replace(/\.(?=e|$)/, ""));
  // As many decimals as the step has, so that no two ticks have the same text.
  const decimals = (step) => [0, 1, 2, 3].find((d) => Math.abs(step * 10 ** d - Math.round(step * 10 ** d)) < 1e-6) ?? 4;
  const axis = (v, step) => (Math.abs(v) >= 1e4 ? v.toLocaleString("en-GB", { notation: "compact" }) : Math.abs(step) < 1e-3 ? v.toExponential(1) : v.toFixed(decimals(step)));
  const plural = (n, one, many) => `${n.toLocaleString("en-GB")} ${n === 1 ? one : many || one + "s"}`;
  const short = or((s) => (s < 1e-3 ? `${(s * 1e6).toPrecision(3)} µs` : s < 1 ? `${(s * 1e3).toPrecision(3)} ms` : `${s.toPrecision(3)} s`));
  function long(seconds) {
    if (!known(seconds)) return "–";
    if (seconds < 90) return plural(Math.round(seconds), "second");
    if (seconds < 5400) return plural(Math.round(seconds / 60), "minute");
    if (seconds < 172800) return plural(Math.round(seconds / 3600), "hour");
    return seconds < 3.2e8 ? plural(Math.round(seconds / 86400), "day") : "more than ten years";
  }
  // Short forms, for tiles.
  const brief = (seconds) => long(seconds).replace(/ seconds?$/, " s").replace(/ minutes?$/, " min").replace("more than ten years", "> 10 years");
  const when = (t) => new Date(t * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const hour = (t) => new Date(t * 1000).toLocaleTimeString("en-GB");
  const now = () => (recorded ? meta.now : Date.now() / 1000 + offset);

  const idOf = (lane) => JSON.stringify([lane.app, lane.topic, lane.learner]);
  // One lane may read the whole topic.
  const nameOf = (lane) => `${lane.app}: ${lane.topic}`;
  const value = (lane, name) => lane.values[name];
  const total = (v) => (known(v) ? Object.values(v).reduce((a, b) => a + b, 0) : undefined);
  const first = (v) => (v && typeof v === "object" ? Object.values(v)[0] : v);
  // Where labels come later an event is counted when it comes, and again when it is due; a lane that only learns has it once.
  const events = (lane) => { const all = total(lane.values.events_total), due = total(lane.values.due_events_total) || 0; return known(all) ? Math.max(all - due, due) : undefined; };
  const isLate = (id) => known(value(lane1(id), "labels_reading"));
  const all = () => [...lanes.values()];
  const privates = () => all().filter((lane) => lane.report);
  const processed = (name, app) => (meta.process[name] || []).filter((row) => !app || row.app === app).reduce((sum, row) => sum + row.value, 0);

  // Workers that score with a published model: their applications, and the state of each under the name of its group.
  const GROUP = ".scorers";
  const groupOf = (app) => `${app}${GROUP}`;
  const isGroup = (name) => name.endsWith(GROUP);
  const scoring = () => Object.keys(meta.apps || {}).filter(isGroup).map((name) => name.slice(0, -GROUP.length));
  const scorer = (name, app) => { const row = (meta.process[name] || []).find((r) => r.app === app); return row ? row.value : null; };

  // Rate of a column per second, over at least the latest `seconds`.
  function rate(lane, column, seconds) {
    const { t, [column]: y } = lane.history;
    if (!y || t.length < 2) return null;
    const last = t.length - 1;
    let from = last - 1;
    while (from > 0 && t[last] - t[from] < seconds) from--;
    const end = recorded ? t[last] : Math.max(t[last], Math.min(now(), t[last] + seconds));
    if (!recorded && now() - t[last] > seconds) return 0;
    return y[last] === null || y[from] === null || end <= t[from] ? null : (y[last] - y[from]) / (end - t[from]);
  }

  // The connection: the first frame is whole, later ones have changes only.

  function take(frame, whole) {
    if (!whole && frame.boot !== meta.boot) return load();
    if (!whole && frame.roster !== meta.roster) return load();
    offset = frame.now - Date.now() / 1000;
    heard = performance.now();
    dead = null;
    meta = { ...meta, ...frame };
    const dirty = new Set();
    if (whole) lanes.clear();
    for (const lane of frame.lanes) {
      const id = idOf(lane), old = lanes.get(id);
      dirty.add(id);
      if (!old) { lanes.set(id, lane); continue; }
      const report = lane.report === undefined ? old.report : lane.report;
      lanes.set(id, { ...old, ...lane, report, history: joined(old.history, lane.history) });
    }
    if (whole) rebuild();
    else update(dirty);
  }

  function joined(old, point) {
    const last = old.t.length ? old.t[old.t.length - 1] : -Infinity;
    const fresh = point.t.length && point.t[0] > last;
    if (!fresh) return old;
    const size = old.t.length;
    for (const name of Object.keys(point)) {
      const column = old[name] || (old[name] = Array(size).fill(null));
      column.push(point[name][0]);
    }
    for (const name of Object.keys(old)) {
      if (old[name].length === size) old[name].push(null);
      if (old[name].length > KEPT) old[name] = old[name].map((v, i, all) => (v === null && i ? all[i - 1] : v)).filter((_, i) => i % 2 === 0);
    }
    return old;
  }

  let loading = false;
  async function load() {
    if (loading) return;
    loading = true;
    try {
      const answer = await fetch("page/data", { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      take(await answer.json(), true);
      ready = true;
      if (!polling && (!source || source.readyState === EventSource.CLOSED)) listen();
    } catch (error) {
      silent();
      if (!ready) setTimeout(load, 2000);
    } finally {
      loading = false;
    }
  }

  function listen() {
    source = new EventSource(`page/events?after=${meta.seq}`);
    source.onmessage = (event) => { polling = false; take(JSON.parse(event.data), false); };
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return;
      polling = true; // too many readers, or a proxy without streams: poll every few seconds
      setTimeout(() => { polling = false; load(); }, 3000);
    };
  }

  function silent() {
    if (recorded || dead) return;
    dead = meta.now ? Date.now() / 1000 + offset - (performance.now() - heard) / 1000 : Date.now() / 1000;
    update(new Set());
  }

  // What needs attention, in words

  function named(list) {
    const names = list.slice(0, 3).map(nameOf).join(", ");
    return list.length > 3 ? `${names} and ${list.length - 3} more` : names;
  }

  function alarms() {
    const found = [];
    const add = (kind, head, text, next) => found.push({ kind, head, text, next });
    if (dead) add("bad", "The worker has stopped, or cannot be reached.", `It was last heard at ${hour(dead)}. What is shown is what it had committed by then.`,
      "Look at the end of its log, which says why; then start it again with `streampair run`. It goes on at its last commit and loses nothing.");
    for (const [app, state] of Object.entries(meta.apps || {})) {
      if (state.state === "failed") add("bad", `${app} has failed.`, sentence(state.detail), sentence(state.next_step));
      if (state.state === "waiting") add("warn", `${app} is waiting.`, sentence(state.detail), sentence(state.next_step));
    }
    const broken = privates().filter((lane) => lane.report.kind === "void");
    for (const [reason, group] of grouped(broken)) add("bad", "No guarantee holds.", `${named(group)}: ${reason}.`, "Epsilon says nothing about records taken since. The state keeps this record; remove the cause, then start a new account under another app name.");
    const doubtful = privates().filter((lane) => lane.report.kind === "unvouched");
    for (const [reason, group] of grouped(doubtful)) add("warn", "The guarantee cannot be vouched for in full.", `${named(group)}: ${reason}.`, "The releases that are accounted for are within the budget. See “Forks and restarts” on the privacy tab.");
    const silent_ = all().filter((lane) => known(value(lane, "label_newest_seconds")) && now() - value(lane, "label_newest_seconds") > value(lane, "label_quiet_seconds"));
    if (silent_.length) add("warn", "Labels have stopped.", `${named(silent_)}: the newest is ${long(Math.max(...silent_.map((lane) => now() - value(lane, "label_newest_seconds"))))} old.`, "Check that what writes the labels topic still runs. Without `label_input.quiet` events are meanwhile learned as if they had no label.");
    if (meta.approval && privates().length && new Date(now() * 1000).toISOString().slice(0, 10) > meta.approval[2]) add("warn", "The review of epsilon and delta is due.", approval(), "Review them, then set `card.approved_on`, `reason` and `review_by`.");
    const ended = privates().filter((lane) => value(lane, "privacy_horizon_left") === 0);
    if (ended.length) add("warn", "The horizon is reached.", `${named(ended)}: the model still scores, and learns no more.`, "To go on learning, plan a new budget (`streampair budget plan`) under another app name; what it spends on the same records adds up.");
    return found;
  }

  function grouped(list) {
    const groups = new Map();
    for (const lane of list) groups.set(lane.report.guarantee, [...(groups.get(lane.report.guarantee) || []), lane]);
    return groups;
  }
  const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "");

  function showAlarms() {
    const found = alarms();
    const text = JSON.stringify(found);
    if (text === shownAlarms) return;
    shownAlarms = text;
    $("alarms").replaceChildren(...found.map((a) => h("div", { class: "alarm", "data-kind": a.kind }, h("b", {}, a.head), ` ${a.text} `, a.next ? h("span", { class: "next" }, ...typed(`Next step: ${a.next}`)) : null)));
  }

  const STATES = { running: ["good", "running"], rebalancing: ["good", "moving partitions"], starting: ["wait", "starting"], waiting: ["warn", "waiting"], stopping: ["wait", "stopping"], stopped: ["wait", "stopped cleanly"], failed: ["bad", "failed"] };
  const RANK = ["failed", "waiting", "starting", "stopping", "rebalancing", "running", "stopped"];

  function showStatus() {
    let kind = "good", text = "Live";
    const worstOf = (states) => RANK.find((state) => states.includes(state)) || "running";
    const byApp = new Map();
    for (const [name, { state }] of Object.entries(meta.apps || {})) {
      const app = isGroup(name) ? name.slice(0, -GROUP.length) : name;
      byApp.set(app, [...(byApp.get(app) || []), state]);
    }
    const apps = [...byApp.values()].map(worstOf);
    if (dead) [kind, text] = ["bad", `Stopped: no answer since ${hour(dead)}`];
    else if (!ready && !recorded) [kind, text] = ["wait", "Connecting"];
    else if (recorded) [kind, text] = ["wait", `Recorded on ${when(meta.now)}`];
    else if (apps.length) {
      const worst = worstOf(apps);
      const same = apps.filter((state) => state === worst).length;
      kind = STATES[worst][0];
      const lead = worst === "stopped" ? "Ended" : "Live";
      text = apps.length === 1 ? `${lead}: ${STATES[worst][1]}` : `${lead}: ${same} of ${apps.length} applications ${STATES[worst][1]}`;
    }
    if (polling && !dead) text += ", refreshed every 3 seconds";
    put($("status"), "data-kind", kind);
    set($("status-text"), text);
  }

  function set(node, text) { if (node.textContent !== text) node.textContent = text; }
  function put(node, key, text) { if (node.getAttribute(key) !== text) node.setAttribute(key, text); }

  // Nodes with live updates: with every message (on = null), or with messages about these lanes

  function bind(on, run) { live.push([on, run]); run(); }
  function text(on, get, series) {
    const node = h("span", series ? { "data-series": series, "data-lane": on && on.length === 1 ? on[0] : null } : {});
    bind(on, () => set(node, get()));
    return node;
  }
  const lane1 = (id) => lanes.get(id);
  const num = (id, name, format, pick) => text([id], () => { const lane = lane1(id); return lane ? format(pick ? pick(value(lane, name)) : first(value(lane, name))) : "–"; }, `streampair_${name}`);

  // Title, unit and help of a series come from the server.
  const seriesOf = (name) => meta.series[name] || { title: name, unit: "", help: "" };
  const titleOf = (name) => seriesOf(name).title;
  const titled = (name, more = "") => h("span", { title: seriesOf(name).help }, titleOf(name) + more);
  const tile = (id, name, format, sub, pick) => [titled(name), num(id, name, format, pick), sub === undefined ? seriesOf(name).unit : sub];
  const described = (name, more = "") => ({ title: titleOf(name) + more, help: seriesOf(name).help, yLabel: seriesOf(name).unit });

  function tiles(...list) {
    return h("dl", { class: "tiles" }, ...list.filter(Boolean).map(([label, shown, sub]) => h("div", { class: "tile" }, h("dt", {}, label), h("dd", { class: "value" }, shown), h("dd", { class: "sub" }, sub || ""))));
  }
  function card(size, title, ...children) {
    return h("section", { class: `card ${size}` }, title ? h("h2", {}, title) : null, ...children);
  }
  function plot(options) {
    const chart = new Chart.Lines(options);
    charts.push({ chart, ids: options.series.map((s) => s.id), due: true });
    return chart.node;
  }
  const lines = (size, options) => card(size, null, plot(options));
  function table(label, head, rows) {
    const cells = (cell, i) => h(i === 0 ? "th" : "td", { class: head[i][1] || null, scope: i === 0 ? "row" : null }, cell);
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", {},
      h("thead", {}, h("tr", {}, ...head.map(([name, kind]) => h("th", { class: kind === "n" ? "n" : null, scope: "col" }, name)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cells))))));
  }
  // On a narrow screen a row is a block with a line for each cell: nothing is scrolled sideways. Such a block is no
  // table to a screen reader any more, so the roles are named.
  function stacked(label, head, rows) {
    const region = table(label, head, rows), [node] = region.children;
    node.className = "stacked";
    for (const [tags, role] of [["table", "table"], ["thead, tbody", "rowgroup"], ["tr", "row"], ["thead th", "columnheader"], ["tbody th", "rowheader"], ["td", "cell"]]) region.querySelectorAll(tags).forEach((part) => put(part, "role", role));
    for (const row of node.tBodies[0].rows) [...row.cells].forEach((cell, i) => put(cell, "data-name", node.tHead.rows[0].cells[i].textContent));
    return region;
  }
  function meter(label, on, share, colour) {
    const bar = Chart.bar([{ colour }]);
    const node = h("div", { class: "bar", role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" }, bar.node);
    bind(on, () => { const s = share(); bar.set([s]); put(node, "aria-valuenow", ((s || 0) * 100).toFixed(1)); });
    return node;
  }
  function opener(id) {
    return h("button", { type: "button", class: "link", onclick: () => choose(id, true) }, `${nameOf(lane1(id))}`);
  }
  const column = (id, name, x) => () => { const past = lane1(id) ? lane1(id).history : { t: [] }; return { x: past[x] || [], y: past[name] || past.t.map(() => null) }; };
  function banded(id, name, error, x, most = Infinity) {
    return () => {
      const past = lane1(id) ? lane1(id).history : { t: [] };
      const y = past[name] || past.t.map(() => null), e = past[error];
      const shift = (sign) => y.map((v, i) => (v === null || !e || e[i] === null ? null : v + sign * e[i]));
      return e ? { x: past[x], y, low: shift(-1), high: shift(1).map((v) => (v === null ? null : Math.min(v, most))) } : { x: past[x] || [], y };
    };
  }
  const each = (ids, points, more) => ids.map((id, i) => ({ id, name: ids.length === 1 ? "" : nameOf(lane1(id)), colour: Math.min(i, 8), points: points(id), ...more }));
  function releaseMarks(id) {
    return () => {
      const { events: x, privacy_releases_total: n } = lane1(id) ? lane1(id).history : {};
      if (!x || !n) return [];
      const out = x.filter((_, i) => i && n[i] > n[i - 1]);
      return out.length > 60 ? [] : out;
    };
  }

  // The tabs

  const ways = {
    learning(ids) {
      const out = [], one = ids.length === 1 ? ids[0] : null;
      const has = (name) => ids.some((id) => known(value(lane1(id), name)));
      if (one) {
        const lane = lane1(one), quality = lane.quality;
        const found = () => lane1(one).quality || {}; // null until both classes were seen
        const enough = (v) => (found().too_few ? "too few" : fixed(4)(v));
        out.push(tiles(
          tile(one, "prequential_auc", fixed(4), h("span", {}, "± ", num(one, "prequential_auc_stderr", fixed(4)), text([one], () => (found().explored_positives === 0 ? ", without positives above the threshold" : "")))),
          quality ? tile(one, "average_precision", enough) : null,
          has("recall_at_threshold") || explored(lane) ? tile(one, "recall_at_threshold", enough) : null,
          has("precision_at_threshold") || explored(lane) ? tile(one, "precision_at_threshold", enough) : null,
          quality ? [titled("recall_at_top", " 1 %"), num(one, "recall_at_top", enough, (v) => v && v["0.01"]), seriesOf("recall_at_top").unit] : null,
          has("regret_average") ? tile(one, "regret_average", four, text([one], () => { const v = first(value(lane1(one), "regret_total")), e = first(value(lane1(one), "regret_stderr")); return known(v) ? `in total ${four(v)} ± ${four(e)}` : ""; })) : null,
          has("pair_loss") ? tile(one, "pair_loss", four, h("span", {}, "best fixed model ", num(one, "comparator_loss", four))) : null,
          [titled("events_total", " learned"), num(one, "events_total", count, (v) => v && v.learned), text([one], () => `of ${count(events(lane1(one)))} seen`)],
          has("weight_norm") ? tile(one, "weight_norm", four, text([one], () => { const n = value(lane1(one), "buffer_records"); return n ? `${plural(n, "record")} in the buffer` : ""; })) : null,
        ));
        if (has("recall_at_threshold") && value(lane, "label_messages_total") && !stops(lane)) out.push(h("p", { class: "note" }, ...typed("Of an event that its score has stopped no label comes. Where silence counts as “no”, these figures are then too low: `label_input.stopped` leaves such events out.")));
        if (explored(lane)) out.push(h("p", { class: "note" }, text([one], () => { const n = explored(lane1(one)), positive = found().explored_positives, part = first(value(lane1(one), "score_sample_share")); return `Events that were let pass to learn their outcomes stand for those that their scores have stopped: ${count(n.yes)} so far.${known(positive) ? ` In the window of these figures ${count(positive)} of them are positive.` : ""}${n.no ? ` Left out are ${count(n.no)} outcomes of events that were to be stopped${part < 1 ? ", of the sample of scores" : ""}.` : ""}${n.stopped ? ` ${count(n.stopped)} more were to be let pass, and were stopped: these figures lack them.` : ""} Precision and recall are shown from 30 explored positives on. The model learns all outcomes alike.`; })));
        else if (stops(lane)) out.push(h("p", { class: "note" }, ...typed("These figures are of the events that were let pass. How many positives are above a threshold is not known: no label of a stopped event comes. With `output.explore` a share of them is let pass.")));
        if (quality && quality.drift) out.push(card("", null, h("span", { class: "chip", "data-kind": "warn" }, titled("drift")), " The AUC has changed: the stream is another one, or the learner has caught up with it."));
      } else {
        out.push(tiles(
          ["Lanes", text(null, () => count(ids.length)), text(null, () => `${privates().length} of them private`)],
          ["Events seen", text(null, () => count(ids.reduce((sum, id) => sum + (events(lane1(id)) || 0), 0))), "over all lanes"],
          ["Highest AUC", text(null, () => fixed(4)(extreme(ids, "prequential_auc", Math.max))), "of a lane"],
          ["Lowest AUC", text(null, () => fixed(4)(extreme(ids, "prequential_auc", Math.min))), "of a lane"],
        ));
        if (ids.some((id) => explored(lane1(id)) || stops(lane1(id)))) out.push(h("p", { class: "note" }, "Scores of some lanes stop events. Of which events their figures are is said where a lane is shown alone."));
      }
      const auc = each(ids, (id) => banded(id, "prequential_auc", "prequential_auc_stderr", "events", 1), { banded: true });
      out.push(lines("half", { ...described("prequential_auc", ", with its standard error"), series: auc, x: "count", xLabel: "events", floor: 0.5, ceiling: 1, number: fixed(4), tick: axis, empty: "It begins once both labels were seen.", marks: one ? releaseMarks(one) : null }));
      if (has("regret_average")) out.push(lines("half", { ...described("regret_average", ", with its standard error"), series: each(ids, (id) => banded(id, "regret_average", "regret_average_stderr", "events"), { banded: true, sparse: true }), x: "count", xLabel: "events", number: four, tick: axis, empty: "It begins with the second labelled event." }));
      if (one && has("pair_loss")) out.push(lines("half", { ...described("pair_loss"), series: [{ id: one, name: titleOf("pair_loss"), colour: 0, sparse: true, points: column(one, "pair_loss", "events") }, { id: one, name: titleOf("comparator_loss"), colour: 1, dashed: true, sparse: true, points: column(one, "comparator_loss", "events") }], x: "count", xLabel: "events", floor: 0, number: four, tick: axis, empty: "No estimate yet." }));
      if (one && has("weight_norm")) out.push(lines("half", { ...described("weight_norm"), series: [{ id: one, name: "", colour: 2, points: column(one, "weight_norm", "events") }], x: "count", xLabel: "events", floor: 0, number: four, tick: axis, empty: "No weights yet." }));
      if (one && lane1(one).quality) out.push(...qualityCharts(one));
      if (one && lane1(one).expected) out.push(card("", "Before labels come", before(one)));
      if (one && (lane1(one).weights || []).length) out.push(card("", "Largest weights", weights(one)));
      if (!one) out.push(card("", "Lanes", table("Lanes and how they learn", [["Lane"], ["Learner"], [titled("events_total", " learned"), "n"], ...["prequential_auc", "regret_average", "pair_loss", "weight_norm"].map((name) => [titled(name), "n"])],
        ids.map((id) => [opener(id), lane1(id).learner, num(id, "events_total", count, (v) => v && v.learned), num(id, "prequential_auc", fixed(4)), num(id, "regret_average", four), num(id, "pair_loss", four), num(id, "weight_norm", four)]))));
      return out;
    },

    privacy(ids) {
      const mine = ids.filter((id) => lane1(id).report);
      if (!mine.length) return [h("div", { class: "card empty" }, h("p", {}, h("b", {}, ids.length === 1 ? "This lane keeps no privacy account." : "No lane keeps a privacy account.")), h("p", {}, "Its learner is not private: weights and scores may disclose single records. streampair.auc.PairFTRL is a private one."))];
      return mine.length === 1 && ids.length === 1 ? officer(mine[0]) : officers(mine, ids.length - mine.length);
    },

    operation(ids) {
      const out = [], one = ids.length === 1 ? ids[0] : null;
      const apps = [...new Set(ids.map((id) => lane1(id).app))];
      const scorers = scoring().filter((name) => !ids.length || apps.includes(name));
      if (!ids.length) return [...scorers.map(scores), card("third", "State and next step", ...scorers.map((name) => stateOf(groupOf(name))))];
      const lag = () => { const known_ = ids.map((id) => value(lane1(id), "lag")).filter(known); return known_.length ? known_.reduce((a, b) => a + b, 0) : null; };
      const speed = () => { const r = ids.map((id) => rate(lane1(id), "events", 10)).filter(known); return r.length ? r.reduce((a, b) => a + b, 0) : null; };
      const catchUp = () => {
        if (lag() === null) return ["–", "read from a file"];
        if (lag() === 0) return ["none", "nothing waits"];
        const drain = -ids.map((id) => rate(lane1(id), "lag", 10) || 0).reduce((a, b) => a + b, 0);
        if (speed() && lag() / speed() < 2) return ["2 s", "or less, at the present speed"];
        return drain > 0 ? [brief(lag() / drain), "at the present rate"] : ["never", "the lag does not fall"];
      };
      const age = () => { const times = apps.map((a) => meta.apps[a] && meta.apps[a].committed_at).filter(known); return times.length ? Math.max(0, now() - Math.min(...times)) : null; };
      const app = apps.length === 1 ? apps[0] : null;
      out.push(tiles(
        ["Speed", text(null, () => (speed() === null ? "–" : `${count(speed())}/s`)), "events, over ten seconds"],
        [titled("lag"), one ? num(one, "lag", count) : text(null, () => count(lag())), seriesOf("lag").unit],
        ["Time to catch up", text(null, () => catchUp()[0]), text(null, () => catchUp()[1])],
        ["Last commit", text(null, () => (age() === null ? "–" : age() < 2 ? "just now" : brief(age()))), text(null, () => { const n = processed("commit_seconds_count", app); return n ? `${short(processed("commit_seconds_sum", app) / n)} each, ${count(n)} in all` : "none yet"; })],
        one ? tile(one, "prequential_auc", fixed(4), text([one], () => `${count((value(lane1(one), "events_total") || {}).learned)} events learned`))
          : ["Lowest AUC", text(null, () => fixed(4)(extreme(ids, "prequential_auc", Math.min))), text(null, () => `${count(ids.reduce((sum, id) => sum + ((value(lane1(id), "events_total") || {}).learned || 0), 0))} events learned`)],
        [titled("dead_letters_total"), text(null, () => count(ids.reduce((sum, id) => sum + ((value(lane1(id), "events_total") || {}).dead_letter || 0), 0))), text(null, () => { const seen = ids.reduce((sum, id) => sum + (events(lane1(id)) || 0), 0), bad = ids.reduce((sum, id) => sum + ((value(lane1(id), "events_total") || {}).dead_letter || 0), 0); return seen ? `${(100 * bad / seen).toPrecision(2)} % of all events`.replace("0.0 %", "0 %") : ""; })],
        [titled("rebalances_total"), counted("rebalances_total", app), h("span", {}, titled("restores_total", ": "), counted("restores_total", app), ", ", titled("fences_total", ": "), counted("fences_total", app))],
      ));
      out.push(...scorers.map(scores));
      const late = ids.filter(isLate);
      out.push(...late.map((id) => labels(id, ids.length > 1)));
      out.push(card("third", "State and next step", ...apps.flatMap((name) => [name, ...(scorers.includes(name) ? [groupOf(name)] : [])]).map(stateOf)));
      const part = (name, key) => (one ? num(one, name, count, (v) => v && v[key]) : text(null, () => count(ids.reduce((sum, id) => sum + ((value(lane1(id), name) || {})[key] || 0), 0))));
      const latest = (key) => (one ? text([one], () => count((lane1(one).dead_letter_offsets || {})[key])) : null);
      out.push(card("third", "Outcomes of the events", table("Events by outcome", [["Outcome"], ["Events", "n"]], [["learned", "Learned"], ["scored", late.length === ids.length ? "Scored; learned when they are due" : "Scored only: no label, or past the horizon"], ...(late.length ? [["skipped", "Due, and not learned"]] : []), ["dead_letter", "Could not be used: a dead letter"], ["tombstone", "Tombstone: a deleted key"], ["ignored", "Ignored: seen before"]].map(([key, words]) => [words, part("events_total", key)]))));
      out.push(card("third", "Dead letters by stage", table("Dead letters by stage", [["Stage"], ["Events", "n"], ...(one ? [["Latest offset", "n"]] : [])], [["decode", "Not readable"], ["features", "A feature is missing, or no number"], ["label", "The label is unknown"], ["learn", "The learner refused it"]].map(([key, words]) => [words, part("dead_letters_total", key), ...(one ? [latest(key)] : [])])), ...(recorded ? [h("p", { class: "note" }, "They are in the file that the summary of the replay names.")] : [])));
      out.push(card("", "Dead letters by cause", causes(ids), h("p", { class: "note" }, ...typed("Since this worker took the lane, the most frequent first, without values of events. `streampair dlq list CONFIG` prints whole errors under the same names."))));
      if (apps.some((name) => (meta.apps[name] || {}).configuration)) out.push(card("", titled("configuration_changes"), ...apps.map((name) => h("p", {}, apps.length > 1 ? h("b", {}, `${name}: `) : null, text(null, () => changed(name))))));
      out.push(lines("half", { ...described("lag"), series: each(ids, (id) => column(id, "lag", "t")), x: "time", floor: 0, number: count, tick: axis, empty: recorded || all().length ? "A file has no lag." : "No lanes yet." }));
      out.push(lines("half", { title: "Events a second", yLabel: "events/s", series: each(ids, (id) => speeds(id)), x: "time", floor: 0, number: (v) => `${count(v)}/s`, tick: axis, empty: "Two commits are needed." }));
      out.push(card(one ? "half" : "", "Where the time goes", split(ids, app)));
      if (one) out.push(card("half", "State", table("The state of the lane", [["What"], ["Value", "n"]], [...[["offset", count], ["state_bytes", bytes], ["buffer_records", count]].map(([name, format]) => [titled(name), num(one, name, format)]), ["Held by this worker since", text([one], () => or(when)(lane1(one).since))]])));
      if (one && late.length) out.push(...labelTables(one));
      if (!one) out.push(card("", "Lanes", table("Lanes and their state", [["Lane"], ["Learner"], [titled("offset"), "n"], [titled("lag"), "n"], ["Events a second", "n"], [titled("dead_letters_total"), "n"], [titled("state_bytes"), "n"]],
        ids.map((id) => [opener(id), lane1(id).learner, num(id, "offset", count), num(id, "lag", count), text([id], () => count(rate(lane1(id), "events", 10))), num(id, "events_total", count, (v) => v && v.dead_letter), num(id, "state_bytes", bytes)]))));
      return out;
    },
  };

  function stateOf(name) {
    const state = () => meta.apps[name] || { state: "starting" };
    const chip = h("span", { class: "chip" });
    bind(null, () => { const [kind, words] = dead ? ["bad", "not answering"] : recorded ? ["wait", "recorded"] : STATES[state().state] || ["wait", state().state]; put(chip, "data-kind", kind); set(chip, words); });
    const starts = isGroup(name) ? "Connecting." : "Opening its lanes.";
    return h("p", {}, h("b", {}, name), " ", chip, h("br"), text(null, () => { const { detail, next_step, state: s } = state(); return detail || next_step ? `${sentence(detail)} ${sentence(next_step)}` : recorded ? "Nothing runs here: this is what was recorded." : { running: "Nothing to do.", starting: starts, stopped: "It ended by itself or was asked to. Start it again to go on.", stopping: "It commits, then leaves.", rebalancing: "Nothing to do: partitions are moving." }[s] || ""; }));
  }

  // What this worker scores with the published model, and how old that is.
  function scores(app) {
    const shown = (name, format) => h("span", { "data-series": `streampair_${name}`, "data-app": app }, text(null, () => format(scorer(name, app))));
    const figure = (name, format, sub) => [titled(name), shown(name, format), sub === undefined ? seriesOf(name).unit : sub];
    const commits = () => { const n = processed("commit_seconds_count", groupOf(app)); return n ? `committed in ${short(processed("commit_seconds_sum", groupOf(app)) / n)} each` : "none yet"; };
    return card("", scoring().length > 1 ? `Scoring in parallel: ${app}` : "Scoring in parallel", tiles(
      figure("scored_events_total", count, text(null, commits)),
      figure("scoring_lag", count, "in the partitions of this worker"),
      figure("model_age_seconds", brief, "in the time of the events"),
      figure("events_behind", count, "scored, and not in the model"),
      figure("model_slots", count, "learned by the model that scores"),
    ));
  }

  // Labels that come later than their events: of a lane that reads them from a topic of their own.
  function labels(id, several) {
    const v = (name) => value(lane1(id), name);
    const share = (part, whole) => (whole ? `${(100 * part / whole).toFixed(1)} %` : NOTHING_YET);
    const sampled = () => v("sampled_labels_total") || {};
    const due = () => v("due_events_total") || {};
    const chip = h("span", { class: "chip" });
    bind([id], () => {
      const [kind, words] = v("labels_reading") ? ["wait", "Labels are read again: events are scored, and learned later"] : v("learning_lag_seconds") > 600 ? ["warn", "Events that are due are not learned yet"] : ["good", "Events are learned when they are due"];
      put(chip, "data-kind", kind);
      set(chip, words);
    });
    const age = () => { const newest = v("label_newest_seconds"); return known(newest) ? brief(Math.max(0, now() - newest)) : NOTHING_YET; };
    return card("", several ? `Labels that come later: ${nameOf(lane1(id))}` : "Labels that come later", h("p", {}, chip), tiles(
      tile(id, "events_pending", count),
      ["Events with a label", text([id], () => share(due().yes, total(due()))), h("span", {}, num(id, "due_events_total", count, (n) => n && n.yes), " of ", text([id], () => count(total(due()))), " that were due")],
      [titled("label_delay_seconds"), text([id], () => brief(quantile(0.5, v("label_delay_seconds")))), text([id], () => { const most = quantile(0.95, v("label_delay_seconds")); return known(most) ? `half of them; 95 % within ${long(most)}` : "none was used yet"; })],
      ["Labels that come late", text([id], () => share(sampled().late, total(sampled()))), h("span", {}, num(id, "sampled_labels_total", count, (n) => n && n.late), " of ", text([id], () => count(total(sampled()))), " in the sample")],
      ["Age of the newest label", text(null, age), text([id], () => `usual: up to ${long(v("label_quiet_seconds"))}`)],
      [titled("learning_lag_seconds"), text([id], () => or(brief)(v("learning_lag_seconds"))), "behind what is due"],
    ));
  }
  const NOTHING_YET = "\u2013";

  // Whether labels say which events were stopped: label_input.stopped.
  const explored = (lane) => value(lane, "explored_events_total");
  const stops = (lane) => "stopped" in (value(lane, "label_messages_total") || {});

  function labelTables(id) {
    const OUTCOMES = [["used", "Used"], ["stopped", "Its event was stopped"], ["repeated", "Came again, and says the same"], ["contradicting", "Came again, and contradicts"], ["unused", "No event had the id in time"], ["late", "Its events were all learned before"], ["unreadable", "Not readable"]].filter(([key]) => key !== "stopped" || stops(lane1(id)));
    return [
      card("half", titled("label_messages_total"), table("Labels by outcome", [["Outcome"], ["Messages", "n"]], OUTCOMES.map(([key, words]) => [words, num(id, "label_messages_total", count, (v) => v && v[key])])), h("p", { class: "note" }, "Since this worker opened the lane. Labels that no event has used are in the late-labels topic.")),
      card("half", "What waits for labels", table("What waits for labels", [["What"], ["Value", "n"]], [...[["labels_kept", count], ["events_without_id_total", count], ["score_sample_events", count], ["score_sample_share", fixed(4)], ["evaluated_events", count]].map(([name, format]) => [titled(name), num(id, name, format)]), [titled("learned_to_seconds"), text(null, () => { const t = value(lane1(id), "learned_to_seconds"); return known(t) ? `${long(now() - t)} ago` : NOTHING_YET; })]])),
    ];
  }

  // Of a histogram: linear within a bucket, as Prometheus has it.
  function quantile(q, observed) {
    const [buckets] = observed || [{}];
    const rows = Object.entries(buckets).map(([bound, n]) => [bound === "+Inf" ? Infinity : Number(bound), n]).sort((a, b) => a[0] - b[0]);
    const rank = rows.length ? q * rows[rows.length - 1][1] : 0;
    if (!rank) return null;
    const at = rows.findIndex(([, n]) => n >= rank);
    const [low, before] = at ? rows[at - 1] : [0, 0];
    const [high, n] = rows[at];
    return high === Infinity ? low : low + (high - low) * (rank - before) / (n - before);
  }

  const counted = (name, app) => text(null, () => count(processed(name, app)), `streampair_${name}`);

  function changed(name) {
    const { keys = [], refused = "" } = (meta.apps[name] || {}).configuration || {};
    if (!keys.length) return "Nothing. The worker runs with what is in the file.";
    const next = refused ? `The next start would be refused: ${refused}.` : "The worker takes it when it is started again.";
    return `${plural(keys.length, "key of the file differs", "keys of the file differ")} from what runs: ${keys.slice(0, 8).join(", ")}${keys.length > 8 ? ` and ${keys.length - 8} more` : ""}. ${next}`;
  }

  function extreme(ids, name, pick) {
    const found = ids.map((id) => value(lane1(id), name)).filter(known);
    return found.length ? pick(...found) : null;
  }

  function speeds(id) {
    return () => {
      const { t = [], events: n = [] } = lane1(id) ? lane1(id).history : {};
      return { x: t.slice(1), y: t.slice(1).map((v, i) => (n[i] === null || n[i + 1] === null ? null : Math.max(0, (n[i + 1] - n[i]) / Math.max(v - t[i], 1e-3)))) };
    };
  }

  function split(ids, app) {
    const STAGES = [["fetch", "Waiting for records"], ["decode", "Decoding"], ["learn", "Scoring and learning"], ["encode", "Handing outputs over"], ["commit", "Committing"]];
    const of = (stage) => (stage === "fetch" || stage === "commit")
      ? (meta.process.worker_seconds_total || []).filter((r) => r.stage === stage && (!app || r.app === app)).reduce((sum, r) => sum + r.value, 0)
      : ids.reduce((sum, id) => sum + ((value(lane1(id), "lane_seconds_total") || {})[stage] || 0), 0);
    const bar = Chart.bar(STAGES.map((_, i) => ({ colour: i })));
    bind(null, () => { const seconds = STAGES.map(([s]) => of(s)), sum = seconds.reduce((a, b) => a + b, 0); bar.set(seconds.map((s) => s / (sum || 1))); });
    return h("div", {}, h("div", { class: "bar", "aria-hidden": "true" }, bar.node), table("Time by stage", [["Stage"], ["Time", "n"]], STAGES.map(([stage, words], i) => {
      const key = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      key.setAttribute("class", `c${i}`); key.setAttribute("viewBox", "0 0 10 10"); key.setAttribute("width", "10"); key.setAttribute("height", "10"); key.setAttribute("aria-hidden", "true");
      const dot = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      dot.setAttribute("width", "10"); dot.setAttribute("height", "10"); dot.setAttribute("rx", "2"); dot.setAttribute("class", `fill c${i}`);
      key.append(dot);
      return [h("span", {}, key, ` ${words}`), text(null, () => short(of(stage)))];
    })));
  }

  function qualityCharts(id) {
    const q = () => (lane1(id) && lane1(id).quality) || { bins: 1, positives: [], negatives: [] };
    const x = () => q().positives.map((_, i) => (i + 0.5) / q().bins);
    const share = (which) => () => { const n = total(q()[which]) || 1; return { x: x(), y: q()[which].map((v) => v / n) }; };
    const level = (column) => () => { const rows = q().reliability || []; return { x: rows.map((r) => r[0]), y: rows.map((r) => r[column]), low: rows.map((r) => Math.max(0, r[1] - r[2])), high: rows.map((r) => Math.min(1, r[1] + r[2])) }; };
    const reliable = () => ({ x: x(), y: q().positives.map((p, i) => (p + q().negatives[i] ? p / (p + q().negatives[i]) : null)) });
    const common = { x: "share", floor: 0, ceiling: 1, number: fixed(3), tick: axis, empty: "No labelled events yet." };
    return [
      lines("half", { ...common, title: "Scores by class, from low to high", yLabel: "share of the class", ceiling: undefined, series: [{ id, name: "positives", colour: 0, points: share("positives") }, { id, name: "all others", colour: 1, points: share("negatives") }], xLabel: "score, of the scale" }),
      q().reliability
        ? lines("half", { ...common, title: "Reliability: share of positives by probability", yLabel: "share of positives", series: [{ id, name: "positives", colour: 0, banded: true, points: level(1) }, { id, name: "perfect calibration", colour: 8, dashed: true, points: () => ({ ...level(0)(), low: undefined }) }], xLabel: "probability" })
        : lines("half", { ...common, title: "Share of positives by score", yLabel: "share of positives", series: [{ id, name: "positives", colour: 0, points: reliable }], xLabel: "score, of the scale" }),
    ];
  }

  // The expected AUC, or why there is none, and the five features that have moved most.
  function before(id) {
    const body = h("tbody"), rows = [], mine = () => lane1(id).expected || { psi: [], moved: [] };
    const share = (v) => `${(100 * v).toFixed(1)} %`;
    const words = () => {
      const { auc, positive_share, moved, features_moved, drifted } = mine();
      if (known(auc)) return `Expected AUC ${fixed(4)(auc)}, expected share of positives ${share(positive_share)}, of the latest thousand scores.${drifted ? ` ${plural(drifted, "feature")} moved within the reference: both may be off.` : ""}`;
      if (!moved.length) return "No expected AUC: fewer than 30 labels of a class have come.";
      return `Expected AUC withheld: features moved. ${moved.map((m) => `${m.name}: ${m.what} ${share(m.before)} in the reference, ${share(m.now)} now`).join("; ")}${features_moved > moved.length ? `; and ${features_moved - moved.length} more` : ""}.`;
    };
    bind([id], () => {
      const found = mine().psi;
      found.forEach(([name, index], i) => {
        if (!rows[i]) {
          rows[i] = { name: h("th", { scope: "row", class: "words" }), index: h("td", { class: "n" }), chip: h("td", {}) };
          body.append(h("tr", {}, rows[i].name, rows[i].index, rows[i].chip));
        }
        set(rows[i].name, name);
        set(rows[i].index, fixed(3)(index));
        set(rows[i].chip, index >= 0.2 ? "moved" : "");
      });
      while (rows.length > found.length) { rows.pop(); body.lastChild.remove(); }
    });
    return h("div", {}, h("p", {}, text([id], words)), h("p", { class: "note" }, "Concept drift, where the same features come to mean something else, cannot be seen before labels come. From 0.2 on a feature has moved."),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The features that have moved most" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Feature"), h("th", { class: "n", scope: "col" }, "Stability index"), h("th", { scope: "col" }, ""))), body)));
  }

  // Rows are kept and refilled: nothing flickers when two weights change places.
  function weights(id) {
    const body = h("tbody"), rows = [], mine = () => lane1(id).weights || [];
    bind([id], () => {
      const found = mine(), most = Math.max(...found.map(([, w, s]) => Math.abs(w) + (s || 0)), 1e-300);
      found.forEach(([name, w, s], i) => {
        if (!rows[i]) {
          const row = { name: h("th", { scope: "row", class: "words" }), value: h("td", { class: "n" }), noise: h("td", { class: "n" }), bar: Chart.signed() };
          rows[i] = row;
          body.append(h("tr", {}, row.name, row.value, row.noise, h("td", { class: "signed" }, row.bar.node)));
        }
        set(rows[i].name, name);
        set(rows[i].value, four(w));
        set(rows[i].noise, known(s) ? `± ${four(s)}` : "–");
        rows[i].bar.set(w / most, (s || 0) / most);
      });
      while (rows.length > found.length) { rows.pop(); body.lastChild.remove(); }
    });
    const noisy = () => mine().some(([, , s]) => known(s));
    return h("div", {}, h("p", { class: "note" }, text([id], () => !lane1(id).report ? "Of the features as the learner scales them." : !value(lane1(id), "privacy_releases_total") ? "No model is released yet." : noisy() ? "Released. The line over a bar is one standard deviation of the noise to each side, to first order." : "Released, under noise. How much of it is left in a weight is not known: the steps after it answer to it, by as much as the records say, which is not released. So no line is drawn.")),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The largest weights" }, h("table", {}, h("thead", {}, h("tr", {}, ...["Feature", "Weight", "Noise", "From − to +"].map((c, i) => h("th", { class: i === 1 || i === 2 ? "n" : null, scope: "col" }, c)))), body)));
  }

  // The officer's answers about one lane, and about many

  const KINDS = { holds: "The guarantee holds", unvouched: "Not vouched for in full", void: "No guarantee holds" };
  const PROMISES = { holds: "Differential privacy holds for every released model.", unvouched: "What is accounted for is within the budget, but more may have been released.", void: "Nothing is promised about records that this lane has taken since its guarantee was void." };

  function chipOf(id) {
    const chip = h("span", { class: "chip" });
    bind([id], () => { const { kind } = lane1(id).report; put(chip, "data-kind", kind); set(chip, KINDS[kind] || kind); });
    return chip;
  }
  const usedShare = (id) => 1 - value(lane1(id), "privacy_horizon_left") / value(lane1(id), "privacy_horizon");
  const percent = or((share) => `${(100 * share).toFixed(1)} %`);

  function exhaustion(id) {
    const left = value(lane1(id), "privacy_horizon_left");
    if (!known(left)) return "The stream may be unbounded, and the spend never passes the promise.";
    if (left === 0) return "The horizon is reached: the model still scores, and learns no more.";
    if (recorded) return `When this was recorded, ${plural(left, "record")} could still be learned.`;
    const pace = rate(lane1(id), "privacy_horizon_left", 60);
    if (!pace || pace >= 0) return "No records are being learned now, so no date can be given.";
    const seconds = left / -pace;
    return `At the present rate it ends in ${long(seconds)}${seconds < 3.2e8 ? `, on ${when(now() + seconds)}` : ""}.`;
  }

  function figure(...parts) { return h("p", { class: "figure" }, ...parts); }
  const listed = (title, items, ...more) => card("third", title, h("ul", {}, ...items.map((t) => h("li", {}, sentence(t)))), ...more);
  const facts = (rows) => h("dl", { class: "facts" }, ...rows.filter(Boolean).map(([name, ...words]) => h("div", {}, h("dt", {}, name), h("dd", {}, ...words))));
  // What the configuration says of all lanes: the same words as on the privacy card.
  const terms = () => Object.entries(meta.terms).map(([name, words]) => [name[0].toUpperCase() + name.slice(1), words]);

  const approval = () => (meta.approval ? `Approved by ${meta.approval[0]} on ${meta.approval[1]}, to be reviewed by ${meta.approval[2]}.` : "No approval is declared in the configuration.");

  function officer(id) {
    const report = () => lane1(id).report;
    const v = (name) => value(lane1(id), name);
    const lane = lane1(id), query = new URLSearchParams({ app: lane.app, topic: lane.topic, learner: lane.learner });
    const promise = card("third promise", titled("privacy_epsilon_budget"),
      figure(h("span", { class: "limit" }, h("b", {}, "≤ ", num(id, "privacy_epsilon_budget", plain)), " at delta ", num(id, "privacy_delta", plain)), " ", chipOf(id)),
      h("p", {}, text([id], () => `${PROMISES[report().kind]} ${sentence(report().guarantee)}`)),
      h("p", {}, text([id], () => (report().kind === "void" ? "It was to protect " : "It protects ")), h("b", {}, text([id], () => report().unit)), "."),
      h("p", { class: "note" }, "Fixed by the configuration: the most that all releases of the whole stream may cost, taken together."),
      h("p", {}, approval()));
    bind([id], () => put(promise, "data-kind", report().kind));
    const spend = plot({ label: titleOf("privacy_epsilon_spent"), height: 130, yLabel: seriesOf("privacy_epsilon_spent").unit, series: [{ id, name: "", colour: 0, step: true, points: column(id, "privacy_epsilon_spent", "t") }], limit: () => [v("privacy_epsilon_budget"), report().kind === "void" ? "promised, and void" : `promised: never above ${plain(v("privacy_epsilon_budget"))}`], x: "time", floor: 0, number: four, tick: axis, empty: "Nothing is released yet." });
    const endless = !known(v("privacy_horizon"));
    return [
      promise,
      card("third spend", titled("privacy_epsilon_spent"),
        figure(h("b", {}, num(id, "privacy_epsilon_spent", four)), " mu ", num(id, "privacy_mu_spent", four), " of ", num(id, "privacy_mu_budget", four), "; ", num(id, "privacy_releases_total", count), text([id], () => (v("privacy_releases_total") === 1 ? " release" : " releases"))),
        h("p", { class: "note" }, text([id], () => `The largest for ${report().protects}, not a sum: it may reach the promise early, and stays there.`)),
        spend),
      card("third", "What remains",
        endless ? figure(h("b", {}, "No end"), ": there is no horizon") : figure(h("b", {}, num(id, "privacy_horizon_left", count)), " of ", num(id, "privacy_horizon", count), " records can be learned"),
        ...(endless ? [] : [meter("Share of the horizon that is used", [id], () => usedShare(id), 8), h("p", {}, text([id], () => `${percent(usedShare(id))} of the horizon is used.`))]),
        h("p", {}, text(null, () => exhaustion(id))),
        h("h2", {}, "Forks and restarts"), h("p", {}, known(v("privacy_forks")) ? h("span", {}, num(id, "privacy_forks", count), " forks are charged (windows that may have been released twice)", text([id], () => { const dates = lane1(id).fork_dates || []; return dates.length ? `, with the commit of ${dates.map(([t, n]) => (dates.length > 1 ? `${when(t)} (${count(n)} by then)` : when(t))).join(", ")}` : ""; }), ". ", titled("privacy_generation", ": "), num(id, "privacy_generation", count), ".") : "No ledger is kept here: this is a replay of a file, whose spend is in no account.")),
      card("third", "Who, what for, on which terms", facts([...terms(),
        ["Neighbouring streams", text([id], () => report().adjacency)],
        ["Account since", text([id], () => (known(v("privacy_since_seconds")) ? when(v("privacy_since_seconds")) : "its first record"))],
        known(v("weight_noise")) ? [titled("weight_noise"), text([id], () => percent(v("weight_noise") / v("weight_norm"))), " of their norm: ", num(id, "weight_noise", four), " of ", num(id, "weight_norm", four)] : null,
        report().auc ? [titled("private_auc"), ...(report().auc.too_few ? ["Too few labels yet"] : [num(id, "private_auc", fixed(4)), " ± ", num(id, "private_auc_stderr", fixed(4))])] : null,
      ]), meta.card ? h("p", {}, h("a", { href: `card?${query}` }, "Privacy card"), " · ", h("a", { href: `card.json?${query}` }, "the same as JSON")) : null),
      ...limits(audits([id])),
      card("", titled("privacy_releases_total"), releases(id)),
      card("", "The mechanism",
        h("p", {}, text([id], () => report().mechanism)),
        h("details", {}, h("summary", {}, "The whole report"), h("p", { class: "lines" }, text([id], () => report().text))),
        report().card.length ? h("details", {}, h("summary", {}, "Mechanism card: what each release costs"), mechanism(report().card)) : null),
    ];
  }

  const audits = (ids) => [h("h2", {}, "What the last audit found"), h("div", {}, ...audited(ids))];
  const limits = (more = []) => [
    listed("What is not covered", meta.limits.not_covered),
    listed("What would void it, or leave it in doubt", [...meta.limits.void_by, `in doubt (“unvouched”): ${meta.limits.doubtful_by.join("; ")}`], ...more),
  ];

  // Findings of the last audit, grouped by lanes.
  function audited(ids) {
    const said = new Map();
    for (const id of ids) {
      const { audit } = lane1(id).report;
      const key = JSON.stringify(audit || null);
      said.set(key, [audit, [...((said.get(key) || [])[1] || []), lane1(id)]]);
    }
    const several = said.size > 1;
    return [...said.values()].map(([audit, group]) => h("p", {}, several ? h("b", {}, `${named(group)}: `) : null, ...typed(
      !audit ? "None is recorded here. `streampair audit CONFIG` attacks a copy of the learner on synthetic streams; it reads no data and spends nothing. `metrics.audit_file` names the file with its result."
        : typeof audit === "string" ? sentence(`the file of the audit ${audit}`)
          : `On ${audit.date}: ${sentence(audit.verdict)} ${audit.parts.map((part) => `${sentence(part.part)} Claimed: mu ${four(part["mu claimed"])}; the best attack shows at least ${four(part["mu at least, at confidence 0.9999"])} of the ${four(part["mu accounted for"])} that its slots are accounted with.`).join(" ")}`)));
  }

  function mechanism(rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    const cell = (v) => (typeof v === "number" ? (Number.isInteger(v) ? count(v) : four(v)) : v === null || v === undefined ? "–" : typeof v === "object" ? JSON.stringify(v) : String(v));
    return stacked("Mechanism card", [["Field"], ...rows.map((_, i) => [rows.length > 1 ? `Release ${i + 1}` : "Value", "words"])], names.map((name) => [name.replaceAll("_", " "), ...rows.map((row) => cell(row[name]))]));
  }

  // Releases by date of their commit, with the last record by then where the state has it.
  function releases(id) {
    const node = h("div", { class: "compact" });
    let last = "";
    bind([id], () => {
      const dates = lane1(id).releases || [], placed = dates.some((row) => known(row[4]));
      const rows = dates.map(([t, n, mu, left, slot]) => [when(t), ...(placed ? [count(slot)] : []), count(n), four(mu), count(left)]).reverse();
      const names = ["Committed on", ...(placed ? ["Record"] : []), ...["privacy_releases_total", "privacy_mu_spent", "privacy_horizon_left"].map(titleOf)];
      const key = JSON.stringify(rows);
      if (key === last) return;
      last = key;
      node.replaceChildren(rows.length ? stacked("The latest releases", names.map((name, i) => [name, i ? "n" : null]), rows) : "None yet.");
    });
    return node;
  }

  // The causes of all these lanes; "" is the name of all further ones.
  function causes(ids) {
    const body = h("tbody"), heads = [["Cause"], ["Stage"], ["Error"], ["Events", "n"], ...(ids.length === 1 ? [["Latest offset", "n"]] : [])];
    let last = "";
    bind(ids, () => {
      const byName = new Map();
      for (const [name, stage, words, n, at] of ids.flatMap((id) => (lane1(id) || {}).dead_letter_causes || [])) {
        const before = byName.get(name);
        byName.set(name, [name, stage, words, n + (before ? before[3] : 0), at]);
      }
      const found = [...byName.values()].sort((a, b) => !a[0] - !b[0] || b[3] - a[3]);
      const key = JSON.stringify(found);
      if (key === last) return;
      last = key;
      const rows = found.map(([name, stage, words, n, at]) => [name || "further causes", stage || "–", words || "–", count(n), ...(ids.length === 1 ? [count(at)] : [])]);
      if (!rows.length) rows.push(["None yet", ...heads.slice(1).map(() => "")]);
      body.replaceChildren(...rows.map((row) => h("tr", {}, ...row.map((c, i) => h(i ? "td" : "th", { class: heads[i][1] || null, scope: i ? null : "row" }, c)))));
    });
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Dead letters by cause" }, h("table", {}, h("thead", {}, h("tr", {}, ...heads.map(([name, kind]) => h("th", { class: kind || null, scope: "col" }, name)))), body));
  }

  function officers(ids, others) {
    const out = [];
    const of = (kind) => ids.filter((id) => lane1(id).report.kind === kind).length;
    out.push(card("", null, h("p", { class: "lead" }, text(null, () => {
      const parts = [];
      if (of("holds")) parts.push(`the guarantee holds in ${of("holds")}`);
      if (of("unvouched")) parts.push(`cannot be vouched for in full in ${of("unvouched")}`);
      if (of("void")) parts.push(`is void in ${of("void")}`);
      return `${plural(ids.length, "lane keeps", "lanes keep")} a privacy account: ${parts.join(", ")}.${others ? ` ${plural(others, "lane keeps", "lanes keep")} none.` : ""}`;
    })), h("p", { class: "note" }, ...typed("Learners on one topic see the same records: their spends add up (mu²). `streampair budget show` adds up the applications of several configurations."))));
    const columns = [
      ["Lane", (id) => opener(id), "words"],
      ["Learner", (id) => lane1(id).learner],
      [titled("privacy_guarantee"), chipOf],
      ["Protects", (id) => text([id], () => lane1(id).report.protects)],
      [titled("privacy_epsilon_budget"), (id) => h("span", { class: "promise" }, h("b", {}, "≤ ", num(id, "privacy_epsilon_budget", plain)), " at delta ", num(id, "privacy_delta", plain))],
      [titled("privacy_epsilon_spent"), (id) => h("b", { class: "spend" }, num(id, "privacy_epsilon_spent", four)), "n"],
      [titled("privacy_horizon_left"), (id) => (known(value(lane1(id), "privacy_horizon")) ? h("span", {}, num(id, "privacy_horizon_left", count), " of ", num(id, "privacy_horizon", count)) : "no end"), "n"],
      [titled("privacy_releases_total"), (id) => num(id, "privacy_releases_total", count), "n"],
      [titled("privacy_forks"), (id) => num(id, "privacy_forks", count), "n"],
    ];
    out.push(card("", "Lanes", stacked("Lanes and their guarantees", columns.map(([name, , kind]) => [name, kind]), ids.map((id) => columns.map(([, cell]) => cell(id))))));
    out.push(card("third", "Who, what for, on which terms", facts([...terms(), ["Approval", approval()]]), ...audits(ids)), ...limits());
    return out;
  }

  // Rendering

  function visible() { return meta.public ? TABS.filter(([key]) => key === "privacy") : TABS; }

  function rebuild() {
    const ids = [...lanes.keys()];
    if (chosen && !lanes.has(chosen)) chosen = "";
    const single = ids.length === 1 ? ids[0] : chosen;
    const options = ids.length === 1 ? [h("option", { value: ids[0] }, nameOf(lane1(ids[0])))] : [h("option", { value: "" }, `All lanes (${ids.length})`), ...ids.map((id) => h("option", { value: id }, `${nameOf(lane1(id))}, ${lane1(id).learner}`))];
    $("lane").replaceChildren(...options);
    $("lane").value = single;
    $("pick").hidden = !ids.length;
    if (!visible().some(([key]) => key === tab)) tab = visible()[0][0];
    const focused = document.activeElement && document.activeElement.id;
    $("tabs").replaceChildren(...visible().map(([key, words]) => h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": `panel-${key}`, "aria-selected": String(key === tab), tabindex: key === tab ? "0" : "-1", onclick: () => show(key), onkeydown: tabKey }, words)));
    panels = {};
    $("panels").replaceChildren(...visible().map(([key]) => (panels[key] = h("div", { role: "tabpanel", id: `panel-${key}`, "aria-labelledby": `tab-${key}`, tabindex: "0", hidden: key !== tab }))));
    fill(single ? [single] : ids);
    if (focused && $(focused) && document.activeElement !== $(focused)) $(focused).focus();
    set($("foot"), `streampair ${meta.version || ""}${meta.public ? ". Everything here is computed from released models, the plan and metadata." : ""}`);
  }

  const beginning = () => Object.values(meta.apps || {}).some(({ state }) => state === "starting");
  // What data a lane has: when that changes, the tab is rebuilt.
  const shapeOf = (ids) => ids.map((id) => { const { values, quality, weights, expected } = lane1(id); return [Object.keys(values).join(), !!expected, !!quality, !!(quality && quality.reliability), !!(quality && quality.drift), !!(weights || []).length].join(); }).join(";");
  const scorersShape = () => scoring().join();
  let shape = "", scorersShown = "";

  function fill(ids) {
    shape = shapeOf(ids);
    scorersShown = scorersShape();
    live = [];
    charts.forEach(({ chart }) => chart.close());
    charts = [];
    const grid = h("div", { class: "grid" });
    if (!ids.length && tab === "operation" && scorersShown) grid.append(...ways.operation(ids));
    else if (!ids.length) grid.append(h("div", { class: "card empty" }, h("p", {}, h("b", {}, text(null, () => beginning() ? "The worker is starting." : meta.public ? "No private lane yet." : "No lane yet."))), h("p", {}, scorersShown && !meta.public ? "A worker that scores alone has none. How it scores is on the operation tab." : text(null, () => beginning() ? "It compiles kernels, which takes minutes at the first start, connects, or opens its lane. The log says how far it is." : "A lane appears when this worker has opened it. Of workers with one model for the whole topic one has the lane, and the others stand by."))));
    else grid.append(...ways[tab](ids));
    panels[tab].replaceChildren(grid);
    update(new Set(ids));
  }

  let due = 0;
  function update(dirty) {
    showStatus();
    showAlarms();
    const ids = chosen && lanes.has(chosen) ? [chosen] : [...lanes.keys()];
    if ((dirty.size && shape !== shapeOf(ids)) || (panels[tab] && scorersShown !== scorersShape())) {
      const inside = panels[tab].contains(document.activeElement);
      fill(ids);
      if (inside) panels[tab].focus();
      return;
    }
    for (const [on, run] of live) if (on === null || on.some((id) => dirty.has(id))) if (!on || on.every((id) => lanes.has(id))) run();
    for (const entry of charts) entry.ids.forEach((id, i) => { if (dirty.has(id)) { entry.chart.touch(i); entry.due = true; } });
    if (!due) due = requestAnimationFrame(() => { due = 0; for (const entry of charts) if (entry.due) { entry.due = false; entry.chart.draw(); } });
  }

  function show(key, focus) {
    tab = key;
    for (const [name] of visible()) {
      const chosenTab = name === key;
      put($(`tab-${name}`), "aria-selected", String(chosenTab));
      put($(`tab-${name}`), "tabindex", chosenTab ? "0" : "-1");
      panels[name].hidden = !chosenTab;
      if (!chosenTab) panels[name].replaceChildren();
    }
    if (focus) $(`tab-${key}`).focus();
    remember();
    const ids = [...lanes.keys()];
    fill(chosen && lanes.has(chosen) ? [chosen] : ids);
  }

  function tabKey(event) {
    const keys = visible().map(([key]) => key), index = keys.indexOf(tab);
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: keys.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    show(keys[(to + keys.length) % keys.length], true);
  }

  function choose(id, focus) {
    chosen = id;
    $("lane").value = id;
    remember();
    fill(id ? [id] : [...lanes.keys()]);
    if (!focus) return; // keep the focus in the list of lanes
    $(`panel-${tab}`).focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  function remember() {
    const lane = chosen ? `/${encodeURIComponent(chosen)}` : "";
    history.replaceState(null, "", `#${tab}${lane}`);
  }
  function recall() {
    const [key, lane] = location.hash.slice(1).split("/");
    if (TABS.some(([name]) => name === key)) tab = key;
    try { chosen = lane ? decodeURIComponent(lane) : ""; } catch { chosen = ""; }
  }

  // Light, dark, or as the system has it

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("streampair-theme") || "system"; } catch { return "system"; } };
  let theme = stored();
  function paint() {
    put(document.documentElement, "data-theme", theme === "system" ? (dark.matches ? "dark" : "light") : theme);
    set($("theme"), `Theme: ${theme}`);
  }
  $("theme").addEventListener("click", () => {
    theme = { system: "light", light: "dark", dark: "system" }[theme];
    try { localStorage.setItem("streampair-theme", theme); } catch { /* it holds until the page is closed */ }
    paint();
  });
  dark.addEventListener("change", paint);
  $("lane").addEventListener("change", (event) => choose(event.target.value));
  window.addEventListener("hashchange", () => { const before = [tab, chosen].join(); recall(); if ([tab, chosen].join() !== before && ready) rebuild(); });

  paint();
  recall();
  if (embedded) {
    recorded = ready = true;
    take(JSON.parse(embedded.textContent), true);
  } else {
    load();
    const hushed = () => ready && performance.now() - heard > SILENT_SECONDS * 1000;
    setInterval(() => { if (hushed()) silent(); }, 250);
    setInterval(() => { if (ready && !hushed()) update(new Set()); }, 1000);
  }
})();
