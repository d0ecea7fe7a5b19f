// The page: inputs, sentences and drawings around `formulas`. No equation stands here.

const SVG = new Set("svg g path line circle rect text tspan clipPath defs title".split(" "));
const NARROW = "\u202f";

const make = (tag, attributes = {}, ...children) => {
  const element = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
};

// Rows

const matching = (rows, quantity, at = {}) =>
  rows.filter((row) =>
    row.quantity === quantity && Object.keys(at).every((name) => row[name] === at[name]));
const value = (rows, quantity, at) => matching(rows, quantity, at)[0]?.value;

// What a function gives, or what it refuses and why.
const attempt = (calculate) => {
  try {
    return { rows: calculate(), refusal: null };
  } catch (error) {
    if (!(error instanceof $.InputError)) throw error;
    return { rows: [], refusal: error };
  }
};

// Words

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const digits = (x, count = 3) =>
  Number(x.toPrecision(count)).toLocaleString("en", { maximumSignificantDigits: count });
const listed = (parts) =>
  parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : parts.join("");

const inUnits = (x, units) => {
  if (x === 0) return `0\u00a0${units[0][0]}`;
  const fitting = units.filter(([, base]) => Math.abs(x) >= base * 0.9995);
  const [unit, base] = fitting.at(-1) ?? units[0];
  const count = digits(x / base);
  const plural = ["hour", "day", "year"].includes(unit) && count !== "1" ? "s" : "";
  return `${count}\u00a0${unit.replace("us", "µs")}${plural}`;
};

const SOURCE = (leaf) =>
  leaf ? [leaf.source ?? "no source stated", leaf.date].filter(Boolean).join(", ") : "";

// Drawings

const scale = (low, high, from, to, log) => {
  const at = (x) => (log ? Math.log(x / low) / Math.log(high / low) : (x - low) / (high - low));
  return Object.assign(
    (x) => {
      const place = from + at(x) * (to - from);
      return Number.isFinite(place) ? Math.max(-1e4, Math.min(1e4, place)) : x > low ? 1e4 * Math.sign(to - from) : -1e4 * Math.sign(to - from);
    },
    { low, high, from, to },
  );
};

const decades = (low, high, most) => {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  const count = Math.max(0, Math.floor((last - first) / step) + 1);
  return Array.from({ length: count }, (_, i) => 10 ** (first + i * step));
};

// Labels moved apart along one axis, in their order.
const apart = (places, distance, low, high) => {
  const order = places.map((place, i) => [place, i]).sort((a, b) => a[0] - b[0]);
  let edge = low - distance;
  for (const entry of order) edge = entry[0] = Math.max(entry[0], edge + distance);
  edge = high + distance;
  for (const entry of order.reverse()) edge = entry[0] = Math.min(entry[0], edge - distance);
  return order.sort((a, b) => a[1] - b[1]).map(([place]) => place);
};

const pathOf = (points) =>
  points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)},${y.toFixed(1)}`).join("");

const text = (x, y, content, attributes = {}) => make("text", { x, y, ...attributes }, content);

// An empty drawing of the width of its figure, with its axes.
const drawing = (figure, height, alt, { left, right, top, bottom }) => {
  const width = Math.max(260, figure.clientWidth);
  const svg = make("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": alt,
  });
  const caption = figure.querySelector("figcaption");
  figure.replaceChildren(svg, caption);
  const area = { left, right: width - right, top, bottom: height - bottom };
  const clip = `${figure.id}-area`;
  svg.append(make("defs", {}, make("clipPath", { id: clip }, make("rect", {
    x: area.left, y: area.top, width: area.right - area.left, height: area.bottom - area.top,
  }))));
  const inside = make("g", { "clip-path": `url(#${clip})` });
  return { svg, inside, area, width };
};

const axisX = ({ svg, area }, x, ticks, label, name) => {
  svg.append(make("line", {
    class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom,
  }));
  let last = -Infinity;
  for (const tick of ticks) {
    const at = x(tick);
    svg.append(make("line", { class: "tick", x1: at, x2: at, y1: area.top, y2: area.bottom }));
    if (at - last < 46) continue;
    last = at;
    svg.append(text(at, area.bottom + 16, label(tick), { class: "label", "text-anchor": "middle" }));
  }
  svg.append(text((area.left + area.right) / 2, area.bottom + 33, name, {
    class: "name", "text-anchor": "middle",
  }));
};

const axisY = ({ svg, area }, y, ticks, label) => {
  for (const tick of ticks) {
    const at = y(tick);
    svg.append(make("line", { class: "tick", x1: area.left, x2: area.right, y1: at, y2: at }));
    svg.append(text(area.left - 6, at + 4, label(tick), { class: "label", "text-anchor": "end" }));
  }
};

function show(page) {
  const root = document.getElementById("calculator");
  const time = (x) =>
    x > 1e10 ? "more than 300\u00a0years" : inUnits(x, page.times);
  const size = (x) => (x === Infinity ? "any amount" : x > 0 && x < 1 ? "less than 1\u00a0B" : inUnits(x, page.sizes));
  const title = (tier) => page.tiers[tier][0];
  const spoken = (tier) => page.tiers[tier][1];
  const count = (x) => Math.round(x).toLocaleString("en");

  // The setting: what differs from the scenario, and the scenario that follows from it

  const CHOICES = {
    model: page.model,
    hardware: page.presets[0].key,
    prefill: "",
    element: page.scenario.serving.element,
    first: page.scenario.serving.first_token_from,
    reading: page.scenario.prices.reading,
  };
  const controls = Object.fromEntries(page.controls.map((control) => [control.key, control]));
  let setting = {};
  const chosen = (name) => setting[name] ?? CHOICES[name];

  const modelOf = (key) => (key === page.model ? page.scenario.model : $models(key));
  const perToken = (scenario) => value(formulas.sizes(scenario), "kv_bytes_per_token");

  // How the prompt may be computed: by a table of this model on these GPUs, or by a rate.
  const prefills = (model, hardware) => {
    const own = page.scenario.serving.prefill;
    const tables = page.tables
      .filter((each) => each.gpus === hardware.gpus && each.model === model.name)
      .map((each) => each.name);
    const first = tables.includes(own.table) ? [own.table] : [];
    const isOwn = model.name === page.scenario.model.name;
    const known = (isOwn && own.active_params) || model.active_params;
    const widths = model.query_heads && model.qk_head_dim && model.v_head_dim;
    const rates = page.rate.flops_per_s && known && (widths || !model.groups.length) ? ["rate"] : [];
    const ownRate = isOwn && own.flops_per_s ? rates : [];
    return [...new Set([...ownRate, ...first, ...tables, ...rates])];
  };

  const place = (scenario, path, set) => {
    const part = path.slice(0, -1).reduce((at, name) => at?.[name], scenario);
    if (set !== undefined && part) part[path.at(-1)] = set;
    return part?.[path.at(-1)];
  };

  const plain = () => {
    const scenario = structuredClone(page.scenario);
    const preset = page.presets.find((each) => each.key === chosen("hardware"));
    if (chosen("model") !== page.model) {
      scenario.model = modelOf(chosen("model"));
      scenario.serving.prefill.active_params = null;
    }
    scenario.hardware = structuredClone(preset.hardware);
    scenario.serving.transfer = structuredClone(preset.transfer);
    const ways = prefills(scenario.model, scenario.hardware);
    const way = ways.includes(chosen("prefill")) ? chosen("prefill") : ways[0];
    scenario.serving.prefill.table = way === "rate" ? null : way;
    scenario.serving.prefill.flops_per_s =
      way === "rate" ? scenario.serving.prefill.flops_per_s ?? page.rate.flops_per_s : null;
    scenario.serving.element = chosen("element");
    scenario.serving.first_token_from = chosen("first");
    for (const prices of [scenario.prices, scenario.low, scenario.high]) {
      prices.reading = chosen("reading");
    }
    scenario.where = (key) => key;
    return scenario;
  };

  // Values that the setting leaves alone: the scenario's, the working set in its tokens.
  const unset = (scenario, control) => {
    if (control.key === "prefix") {
      return page.scenario.workload.prompt_tokens - page.scenario.workload.new_tokens;
    }
    const own = place(scenario, control.path);
    if (control.key !== "working-set" || own === null) return own;
    const before = perToken(page.scenario);
    return before ? (own * perToken(scenario)) / before : own;
  };

  const made = () => {
    const scenario = plain();
    for (const control of page.controls) {
      const set = setting[control.key];
      if (control.key === "prefix") continue;
      place(scenario, control.path, set ?? unset(scenario, control));
      if (set !== undefined && control.path[0] === "prices") {
        // A price of one's own has no band.
        for (const end of ["low", "high"]) place(scenario, [end, ...control.path.slice(1)], set);
      }
    }
    const prefix = setting.prefix ?? unset(scenario, controls.prefix);
    scenario.workload.prompt_tokens = prefix + scenario.workload.new_tokens;
    return scenario;
  };

  // Inputs

  const widgets = {};
  const changed = (name, to) => {
    if (to === undefined) delete setting[name];
    else setting = { ...setting, [name]: to };
    update();
  };

  const select = (name, label, options) => {
    const field = make("select", {
      id: `calculator-${name}`,
      onchange: () => changed(name, field.value === CHOICES[name] ? undefined : field.value),
    }, ...options.map(([key, shown]) => make("option", { value: key }, shown)));
    widgets[name] = { field };
    return make("div", { class: "choice" },
      make("label", { for: `calculator-${name}` }, label), field);
  };

  const STEPS = 300;
  const slider = (control) => {
    const { key, base, low, high, linear } = control;
    const id = `calculator-${key}`;
    const step = (x) => (linear ? (x - low) / (high - low) : Math.log(x / low) / Math.log(high / low));
    const range = make("input", {
      id, type: "range", min: 0, max: STEPS, step: 1,
      oninput: () => {
        const at = range.value / STEPS;
        const shown = linear ? low + at * (high - low) : low * (high / low) ** at;
        const whole = control.unit === "tokens" ? Math.round(shown) : shown;
        changed(key, Number(whole.toPrecision(3)) * base);
      },
    });
    const field = make("input", {
      type: "number", step: "any", min: control.zero ? 0 : null, inputmode: "decimal",
      "aria-label": `${capital(control.label)} [${control.unit || "1"}]`,
      onchange: () => {
        const given = field.value.trim() === "" ? undefined : Number(field.value);
        const fits = given === undefined || (Number.isFinite(given) && (given > 0 || (given === 0 && low === 0)));
        const whole = control.unit === "tokens" && given ? Math.max(1, Math.round(given)) : given;
        if (fits) changed(key, whole === undefined ? undefined : whole * base);
        else update();
      },
    });
    const box = make("div", { class: "slider" },
      make("label", { for: id }, `${capital(control.label)} `, make("span", {}, control.unit)),
      field, range);
    widgets[key] = {
      box,
      refresh: (scenario) => {
        const reading = scenario.prices.reading;
        const rated = scenario.serving.prefill.table === null;
        const used = !control.when || control.when === reading || (control.when === "rate" && rated);
        const there = !control.tier || scenario.hardware.tiers[control.tier];
        box.hidden = !(used && there);
        if (box.hidden) return;
        const now = key === "prefix"
          ? scenario.workload.prompt_tokens - scenario.workload.new_tokens
          : place(scenario, control.path);
        const none = now === null || now === undefined;
        if (document.activeElement !== field) field.value = none ? "" : Number((now / base).toPrecision(6));
        field.placeholder = none ? "none" : "";
        range.hidden = none;
        if (!none) {
          range.value = Math.round(STEPS * Math.max(0, Math.min(1, step(now / base))));
          range.setAttribute("aria-valuetext", `${digits(now / base, 4)} ${control.unit}`);
        }
        box.classList.toggle("changed", setting[key] !== undefined);
      },
    };
    return box;
  };

  const groups = [...new Set(page.controls.map((control) => control.group))];
  const inGroup = (group) => page.controls.filter((each) => each.group === group).map(slider);
  const fieldset = (group, ...content) =>
    make("fieldset", {}, make("legend", {}, group), ...content);
  const more = groups.at(-1);
  const form = make("form", { class: "inputs", "aria-label": "Inputs", onsubmit: (event) => event.preventDefault() },
    fieldset("Model and hardware",
      select("model", "Model", Object.entries(page.models)),
      select("hardware", "Hardware", page.presets.map((each) => [each.key, each.label]))),
    ...groups.slice(0, -1).map((group) => fieldset(group, ...inGroup(group))),
    make("details", {}, make("summary", {}, more),
      select("prefill", "Prefill", []),
      select("element", "Cache element", page.elements.map((name) => [name, name])),
      select("first", "First token from", ["decode", "prefill"].map((name) => [name, `the ${name} side`])),
      select("reading", "Rent of a byte", [
        ["amortised", "bought, written off"], ["rented", "rented"], ["bundled", "comes with the GPU"],
      ]),
      ...inGroup(more)),
    make("p", { class: "reset" }, make("button", {
      type: "button",
      onclick: () => {
        setting = {};
        update();
      },
    }, "Reset to the scenario"), make("span", {}, " The address of this page holds your setting.")));

  const refreshChoices = (scenario) => {
    const ways = prefills(scenario.model, scenario.hardware);
    const names = ways.map((way) => [way, way === "rate" ? "a rate for every length" : `tabulated, ${way}`]);
    widgets.prefill.field.replaceChildren(
      ...names.map(([key, shown]) => make("option", { value: key }, shown)));
    CHOICES.prefill = ways[0];
    for (const name of Object.keys(CHOICES)) widgets[name].field.value = chosen(name);
    widgets.prefill.field.value = scenario.serving.prefill.table ?? "rate";
    for (const option of widgets.model.field.options) {
      const model = modelOf(option.value);
      option.disabled = prefills(model, scenario.hardware).length === 0;
    }
    for (const control of page.controls) widgets[control.key].refresh(scenario);
  };

  // Answers

  const place_ = (tag, name, ...content) => make(tag, { class: name }, ...content);
  const parts = {
    strip: make("ul", { class: "strip", "aria-hidden": "true" }),
    verdict: place_("p", "verdict"),
    lines: place_("ul", "lines"),
    left: place_("p", "told"),
    load: place_("p", "told"),
    worth: place_("ul", "lines"),
    keep: place_("ul", "lines"),
    refusal: make("p", { class: "refusal", role: "alert", hidden: true }),
    numbers: make("table", { class: "numbers" }),
    sources: make("table", { class: "sources" }),
    status: make("p", { class: "status", role: "status", "aria-live": "polite" }),
  };
  const figure = (name, caption) =>
    (parts[name] = make("figure", { id: `calculator-${name}` }, make("figcaption", {}, make("p", {}, caption))));
  const kinds = [];
  const kind = () => {
    const told = make("p", { class: "kind" });
    kinds.push(told);
    return told;
  };
  const section = (name, ...content) => make("section", {}, make("h2", {}, name), ...content);

  const results = make("div", { class: "results" },
    parts.strip, parts.refusal,
    make("div", { class: "answers" },
      section("Which tiers may a request wait for?", kind(), parts.verdict, parts.left,
        figure("point", "Time to have the prefix back, at your length. What ends inside the shaded band is in time and faster than recomputing."),
        parts.lines, parts.load,
        figure("curves", "The same at other lengths. A tier is usable while its line runs in the shaded area.")),
      section("How much of a tier is worth buying?", kind(), parts.worth,
        figure("capacity", "Break-even capacity of each tier alone against the tail exponent, with the band of dated prices; dots mark your exponent.")),
      section("How long is a prefix worth keeping?", kind(), parts.keep,
        figure("interval", "Break-even interval: from a GPU that waits while a prefix loads to loading that is free."))),
    make("details", { class: "all" }, make("summary", {}, "All numbers"),
      make("div", { class: "box", tabindex: 0, role: "group", "aria-label": "All numbers" }, parts.numbers)),
    make("details", { class: "all" }, make("summary", {}, "Inputs and their sources"),
      make("div", { class: "box", tabindex: 0, role: "group", "aria-label": "Inputs" }, parts.sources)));
  root.append(form, results, parts.status);

  const mark = (tier, ...content) =>
    make("li", { class: `tier-${tier}` }, make("b", {}, capital(title(tier))), ...content);

  // What the rows say of one tier with split pools.
  const judged = (answers, tier) => {
    const at = { tier, pool: "disaggregated" };
    const read = (quantity, where = at) => value(answers.slacks.rows, quantity, where);
    return {
      fits: Boolean(read("on_critical_path")),
      fitsOne: Boolean(read("on_critical_path", { tier, pool: "one" })),
      within: Boolean(read("within_slack")),
      rescued: Boolean(read("two_ended_within_slack")),
      fetch: value(answers.recoveries.rows, "fetch_time_s", { tier }),
      both: value(answers.recoveries.rows, "two_ended_time_s", { tier }),
    };
  };

  const tellSlack = (scenario, answers) => {
    const { slacks, recoveries, crossovers, loads, sizes } = answers;
    const tiers = Object.keys(scenario.hardware.tiers);
    const split = value(slacks.rows, "ttft_slack_s", { pool: "disaggregated" });
    const one = value(slacks.rows, "ttft_slack_s", { pool: "one" });
    const cold = value(slacks.rows, "cold_ttft_s", { pool: "disaggregated" });
    const recomputed = value(recoveries.rows, "recompute_time_s");
    const held = recoveries.rows.find((row) => row.quantity === "fetch_time_s").bytes;
    const prefix = scenario.workload.prompt_tokens - scenario.workload.new_tokens;
    const verdicts = Object.fromEntries(tiers.map((tier) => [tier, judged(answers, tier)]));
    const [kept, lost] = [true, false].map((fits) =>
      tiers.filter((tier) => verdicts[tier].fits === fits).map(spoken));
    const verdict = !lost.length ? "A request may wait for every tier."
      : !kept.length ? (split > 0 ? "A request may wait for no tier." : "The target leaves no time for a fetch from any tier.")
      : `A request may wait for ${listed(kept)}, not for ${listed(lost)}.`;
    parts.verdict.textContent = verdict;
    const left = (x) => (x > 0 ? time(x) : `nothing (${time(-x)} too little)`);
    parts.left.textContent =
      `A prefix of ${count(prefix)} tokens takes ${size(held)} of cache. The target of ${time(scenario.slo.ttft_s)} ` +
      `leaves ${left(split)} to fetch it when prefill and decode are split, ${left(one)} in one pool. ` +
      `Recomputing it takes ${time(recomputed)}; without any cache the first token comes after ${time(cold)}, ` +
      `${cold <= scenario.slo.ttft_s ? "within" : "beyond"} the target.`;
    parts.strip.replaceChildren(...tiers.map((tier) =>
      make("li", { class: `tier-${tier} ${verdicts[tier].fits ? "yes" : "no"}` },
        make("b", {}, title(tier).replace(/^\w+ DRAM/, "DRAM").replace(/ tier$/, "")), make("span", {}, verdicts[tier].fits ? "wait" : "no"))));
    parts.lines.replaceChildren(...tiers.map((tier) => {
      const { fits, fitsOne, within, rescued, fetch, both } = verdicts[tier];
      const why = fits ? ": wait for it."
        : within ? `: in time, but recomputing is faster (${time(recomputed)}).`
        : split <= 0 ? ": nothing is left to wait for it."
        : ` is ${time(fetch - split)} too late${fetch >= recomputed ? ", and recomputing is faster" : ""}.`;
      const also = !fits && fitsOne ? " In one pool it could be waited for." : "";
      const rescue = !fits && rescued && !within ? ` Fetching its back while computing its front takes ${time(both)}: in time.` : "";
      const from = value(crossovers.rows, "crossover_tokens", { tier });
      const beats = from === undefined ? "" : Number.isNaN(from) ? " At no length looked at does it beat recomputing."
        : from > 256 ? ` It beats recomputing from ${count(from)} tokens on.` : "";
      return mark(tier, ` ${time(fetch)}${why}${also}${rescue}${beats}`);
    }));
    const busy = loads.rows.filter((row) => row.quantity === "offered_load");
    parts.load.textContent = loads.refusal
      ? `${capital(spoken(loads.refusal.where.split(".")[2]))} could not keep up: ${loads.refusal.found}; expected ${loads.refusal.expected}.`
      : `A tier that alone served every hit and stored every admitted miss would be busy: ${listed(busy.map((row) => `${spoken(row.tier)} ${digits(100 * row.value, 2)}\u00a0%`))} of the time.`;
    drawPoint(scenario, { tiers, verdicts, split, one, recomputed });
    return verdict;
  };

  const drawPoint = (scenario, { tiers, verdicts, split, one, recomputed }) => {
    const times = tiers.map((tier) => verdicts[tier].fetch);
    const reach = [...times, recomputed, ...[split, one].filter((x) => x > 0)];
    const rows = [...tiers, "recompute"];
    const usable = Math.min(split, recomputed);
    const told = tiers.map((tier) => `${title(tier)} ${time(verdicts[tier].fetch)}, ${verdicts[tier].fits ? "in time" : "not usable"}`).join("; ");
    const plot = drawing(parts.point, 64 + 30 * rows.length + 20,
      `Time to fetch the prefix: ${told}; recomputing ${time(recomputed)}; left for a fetch ${split > 0 ? time(split) : "nothing"}.`,
      { left: 104, right: 14, top: 30, bottom: 44 });
    const { svg, inside, area } = plot;
    const x = scale(Math.min(...reach) / 2.5, Math.max(...reach) * 4, area.left, area.right, true);
    axisX(plot, x, decades(x.low, x.high, area.right - area.left > 360 ? 8 : 3), time, "time to have the prefix back");
    svg.append(inside);
    if (usable > x.low) {
      inside.append(make("rect", {
        class: "usable", x: area.left, y: area.top, width: x(usable) - area.left, height: area.bottom - area.top,
      }));
    }
    for (const [limit, name] of [[one, "one"], [split, "split"]]) {
      if (limit > x.low) {
        inside.append(make("line", { class: `limit ${name}`, x1: x(limit), x2: x(limit), y1: area.top, y2: area.bottom }));
      }
    }
    const at = split > 0 ? x(split) : area.left;
    const end = at > area.right - 90 ? "end" : at < area.left + 90 ? "start" : "middle";
    svg.append(text(at, area.top - 10, split > 0 ? `left by the target: ${time(split)}` : "the target leaves nothing", { class: "name strong", "text-anchor": end }));
    rows.forEach((row, i) => {
      const y = area.top + 18 + 30 * i;
      const own = row === "recompute";
      const took = own ? recomputed : verdicts[row].fetch;
      const group = make("g", { class: own ? "own" : `tier-${row}` });
      svg.append(text(area.left - 8, y + 4, own ? "recompute" : capital(title(row)), { class: "row", "text-anchor": "end" }));
      group.append(make("line", { class: "stem", x1: area.left, x2: x(took), y1: y, y2: y }));
      if (own) group.append(make("path", { class: "cross", d: `M${x(took) - 5},${y - 5}l10,10m0,-10l-10,10` }));
      else group.append(make("circle", { class: verdicts[row].fits ? "dot yes" : "dot no", cx: x(took), cy: y, r: 6 }));
      const behind = x(took) + 11 + 6.6 * time(took).length > area.right;
      group.append(text(x(took) + (behind ? -11 : 11), y + 4, time(took), {
        class: "value", "text-anchor": behind ? "end" : "start",
      }));
      svg.append(group);
    });
  };

  const drawCurves = (scenario) => {
    const prefix = scenario.workload.prompt_tokens - scenario.workload.new_tokens;
    const table = scenario.serving.prefill.table && $tables(scenario.serving.prefill.table);
    const end = table ? table.new_tokens.data.at(-1) - scenario.workload.new_tokens : Math.max(controls.prefix.high, prefix * 1.3);
    const lengths = $.np.geomspace(Math.min(controls.prefix.low, prefix / 1.3), end, 48).data;
    const { slacks, recoveries } = { slacks: formulas.slacks(scenario, lengths), recoveries: formulas.recoveries(scenario, lengths) };
    const line = (rows, quantity, at) => matching(rows, quantity, at).map((row) => [row.tokens, row.value]);
    const tiers = Object.keys(scenario.hardware.tiers);
    const again = line(recoveries, "recompute_time_s");
    const split = line(slacks, "ttft_slack_s", { pool: "disaggregated" });
    const one = line(slacks, "ttft_slack_s", { pool: "one" });
    const fetches = tiers.map((tier) => line(recoveries, "fetch_time_s", { tier }));
    const plot = drawing(parts.curves, 330,
      `Time against prefix length from ${count(lengths[0])} to ${count(end)} tokens for every tier, for recomputing and for what the target leaves; your length is marked.`,
      { left: 52, right: 84, top: 10, bottom: 44 });
    const { svg, inside, area } = plot;
    const least = Math.max(1e-6, Math.min(...fetches.map((points) => points[Math.floor(points.length / 3)][1])));
    const x = scale(lengths[0], end, area.left, area.right, true);
    const y = scale(least / 1.5, Math.max(scenario.slo.ttft_s * 3, again.at(-1)[1]), area.bottom, area.top, true);
    const ticks = [256, 1024, 4096, 16384, 65536, 262144].filter((tick) => tick >= x.low && tick <= x.high);
    axisX(plot, x, ticks, (tick) => (tick >= 1024 ? `${tick / 1024}k` : tick), "prefix [tokens]");
    axisY(plot, y, decades(y.low, y.high, 8), time);
    svg.append(inside);
    const draw = (points, name) => inside.append(make("path", { class: name, d: pathOf(points.map(([a, b]) => [x(a), y(b)])) }));
    const top = split.map(([a, b], i) => [x(a), y(Math.min(b, again[i][1]))]);
    inside.append(make("path", { class: "usable", d: `${pathOf(top)}L${area.right},${area.bottom}L${area.left},${area.bottom}Z` }));
    draw(one, "limit one");
    draw(split, "limit split");
    draw(again, "again");
    const mine = x(prefix);
    inside.append(make("line", { class: "mine", x1: mine, x2: mine, y1: area.top, y2: area.bottom }));
    const ends = [...fetches, again];
    const places = apart(ends.map((points) => y(points.at(-1)[1])), 14, area.top + 6, area.bottom - 2);
    tiers.forEach((tier, i) => {
      const group = make("g", { class: `tier-${tier}` });
      group.append(make("path", { class: "fetch", d: pathOf(fetches[i].map(([a, b]) => [x(a), y(b)])) }));
      inside.append(group);
    });
    [...tiers, "again"].forEach((name, i) => {
      const label = name === "again" ? "recompute" : capital(title(name)).replace(/^Remote tier/, "Remote");
      svg.append(make("g", { class: name === "again" ? "own" : `tier-${name}` },
        text(area.right + 6, places[i] + 4, label, { class: "row end" })));
    });
    const here = split.find(([, b]) => b > 0);
    if (here && y(here[1]) > area.top) svg.append(text(area.left + 6, y(here[1]) - 6, "left by the target", { class: "name strong" }));
  };

  const tellWorth = (scenario, answers) => {
    const { rows, refusal } = answers.capacities;
    const tiers = [...new Set(rows.map((row) => row.tier))];
    const why = refusal ? refusal.message
      : scenario.workload.working_set_bytes === null ? "There is no working set to buy for."
      : "No tier has a price.";
    const told = tiers.map((tier) => {
      const read = (quantity, band) => value(rows, quantity, { tier, band });
      const [ratio, worth, low, high] = [
        read("marginal_ratio", "middle"), ...["middle", "low", "high"].map((band) => read("worth_buying_bytes", band)),
      ];
      const held = scenario.hardware.tiers[tier].capacity_bytes;
      const prefetch = rows.find((row) => row.tier === tier).use !== "critical path";
      const use = prefetch ? ", as a source of prefetches" : "";
      if (ratio === 0) return mark(tier, ": buy none. It is off the critical path, and no prefetch of it comes in time.");
      if (ratio === Infinity) return mark(tier, `: one more byte has no rent. Use what there is, ${size(held)}.`);
      const band = size(low) === size(high) ? "" : ` (${size(low)} to ${size(high)} over the band of prices)`;
      if (worth < 1e6) return mark(tier, `${use}: next to nothing, ${size(high)} at best. Its marginal ratio at the working set is ${digits(ratio, 2)}.`);
      const branch = ratio >= 1 ? "the whole working set earns its rent" : "the last bytes of the working set do not earn their rent";
      return mark(tier, `${use}: ${size(worth)}${band}. The marginal ratio at the working set of ${size(scenario.workload.working_set_bytes)} is ${digits(ratio, 2)}: ${branch}.`);
    });
    parts.worth.replaceChildren(...(told.length ? told : [make("li", { class: "none" }, why)]));
    return tiers.map((tier) => `${capital(title(tier))}: ${size(value(rows, "worth_buying_bytes", { tier, band: "middle" }))} worth buying.`).join(" ");
  };

  const drawCapacity = (scenario) => {
    const working = scenario.workload.working_set_bytes;
    const low = controls.beta.low;
    const high = controls.beta.high;
    const exponents = $.np.linspace(low, high, 46).data;
    const { rows } = attempt(() => formulas.capacities(scenario, exponents));
    const tiers = [...new Set(rows.map((row) => row.tier))];
    parts.capacity.hidden = !tiers.length || !working;
    if (parts.capacity.hidden) return;
    const plot = drawing(parts.capacity, 290,
      `Break-even capacity against the tail exponent from ${low} to ${high} for ${listed(tiers.map(title))}; the working set is ${size(working)}.`,
      { left: 58, right: 84, top: 12, bottom: 44 });
    const { svg, inside, area } = plot;
    const x = scale(low, high, area.left, area.right);
    const y = scale(working * 1e-5, working * 1e3, area.bottom, area.top, true);
    axisX(plot, x, [0.1, 0.3, 0.5, 0.7, 0.9], (tick) => tick, "tail exponent β");
    axisY(plot, y, decades(y.low, y.high, 6), size);
    svg.append(inside);
    inside.append(make("line", { class: "working", x1: area.left, x2: area.right, y1: y(working), y2: y(working) }));
    svg.append(text(area.left + 6, y(working) - 6, "working set: no use beyond", { class: "name" }));
    const beta = scenario.workload.tail_exponent;
    inside.append(make("line", { class: "mine", x1: x(beta), x2: x(beta), y1: area.top, y2: area.bottom }));
    const curve = (tier, band) => matching(rows, "break_even_bytes", { tier, band }).map((row) => [x(row.beta), y(row.value)]);
    const { rows: here } = attempt(() => formulas.capacities(scenario));
    const lines = tiers.map((tier) => curve(tier, "middle"));
    const places = apart(lines.map((points) => Math.max(area.top, Math.min(area.bottom, points.at(-1)[1]))), 14, area.top + 6, area.bottom - 2);
    tiers.forEach((tier, i) => {
      const group = make("g", { class: `tier-${tier}` });
      group.append(make("path", { class: "band", d: `${pathOf([...curve(tier, "low"), ...curve(tier, "high").reverse()])}Z` }));
      group.append(make("path", { class: "fetch", d: pathOf(lines[i]) }));
      const mine = value(here, "break_even_bytes", { tier, band: "middle" });
      if (mine !== undefined) group.append(make("circle", { class: "dot yes", cx: x(beta), cy: y(mine), r: 5 }));
      inside.append(group);
      svg.append(make("g", { class: `tier-${tier}` }, text(area.right + 6, places[i] + 4, capital(title(tier)), { class: "row end" })));
    });
  };

  const tellKeep = (scenario, answers) => {
    const { rows, refusal } = answers.intervals;
    const tiers = [...new Set(rows.map((row) => row.tier))];
    const read = (tier, loading) => value(rows, "break_even_interval_s", { tier, loading });
    parts.keep.replaceChildren(...(tiers.length ? tiers.map((tier) => {
      const [waits, free] = [read(tier, "gpu waits"), read(tier, "free")];
      return mark(tier, waits > 0
        ? `: keep a prefix that comes back for certain within ${time(waits)} (the GPU waits while it loads) to ${time(free)} (loading is free).`
        : `: up to ${time(free)} if loading is free; not at all if the GPU waits while it loads.`);
    }) : [make("li", { class: "none" }, refusal ? refusal.message : "No tier has a rent.")]));
    parts.interval.hidden = !tiers.length;
    if (!tiers.length) return;
    const spans = tiers.map((tier) => [read(tier, "gpu waits"), read(tier, "free")]);
    const plot = drawing(parts.interval, 52 + 42 * tiers.length,
      `Break-even interval: ${tiers.map((tier, i) => `${title(tier)} ${time(spans[i][0])} to ${time(spans[i][1])}`).join("; ")}.`,
      { left: 14, right: 14, top: 8, bottom: 44 });
    const { svg, area } = plot;
    const known = spans.flat().filter((x) => x > 0 && Number.isFinite(x));
    const x = scale(Math.min(1, ...known) / 1.5, Math.max(3e7, ...known) * 2, area.left, area.right, true);
    const ticks = [1e-3, 1, 60, 3600, 86400, 31557600].filter((tick) => tick >= x.low && tick <= x.high);
    axisX(plot, x, ticks, time, "time to the next use");
    tiers.forEach((tier, i) => {
      const at = area.top + 28 + 42 * i;
      const [from, to] = spans[i].map((span) => Math.max(area.left, Math.min(area.right, x(Math.max(span, x.low)))));
      const told = `${spans[i][0] > 0 ? time(spans[i][0]) : "none"} to ${time(spans[i][1])}`;
      svg.append(
        make("text", { class: "row value", x: area.left, y: at - 12 },
          make("tspan", { class: "strong" }, capital(title(tier))), `\u2002${told}`),
        make("g", { class: `tier-${tier}` },
          make("line", { class: "span", x1: from, x2: to, y1: at, y2: at }),
          make("circle", { class: "dot no", cx: from, cy: at, r: 5 }),
          make("circle", { class: "dot yes", cx: to, cy: at, r: 5 })));
    });
  };

  const tellNumbers = (scenario, answers) => {
    const tiers = Object.keys(scenario.hardware.tiers);
    const rows = Object.values(answers).flatMap((answer) => answer.rows);
    const percent = (x) => `${digits(100 * x, 3)}\u00a0%`;
    const usd = (x) => `${digits(x * 1e9 * 2629800, 3)}`;
    const ratio = (x) => (x === Infinity ? "∞" : digits(x, 3));
    const split = { pool: "disaggregated" };
    const asked = [
      ["fetch", "fetch_time_s", {}, time],
      ["recovery, the better way", "recovery_time_s", {}, time],
      ["recovery from both ends", "two_ended_time_s", {}, time],
      ["first token, pools split", "ttft_s", split, time],
      ["first token, one pool", "ttft_s", { pool: "one" }, time],
      ["most that can be fetched in time", "max_fetch_bytes", split, size],
      ["fetch beats recomputing from [tokens]", "crossover_tokens", {}, (x) => (Number.isNaN(x) ? "never" : count(x))],
      ["load, if it serves all hits", "offered_load", {}, percent],
      ["mean fetch under that load", "shared_fetch_time_s", {}, time],
      ["rent [USD/GB/month]", "rent_usd_per_byte_s", {}, usd],
      ["share of a hit's value", "share_of_value", {}, percent],
      ["marginal ratio", "marginal_ratio", { band: "middle" }, ratio],
      ["break-even capacity", "break_even_bytes", { band: "middle" }, size],
      ["worth buying", "worth_buying_bytes", { band: "middle" }, size],
      ["interval, the GPU waits", "break_even_interval_s", { loading: "gpu waits" }, time],
      ["interval, loading is free", "break_even_interval_s", { loading: "free" }, time],
      ["written over, times a day", "drive_writes_per_day", {}, ratio],
      ["life", "life_s", {}, time],
    ];
    const cell = (quantity, at, told) => {
      const found = value(rows, quantity, at);
      return make("td", {}, found === undefined ? "–" : told(found));
    };
    parts.numbers.replaceChildren(
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Quantity"), ...tiers.map((tier) => make("th", { scope: "col" }, capital(title(tier)))))),
      make("tbody", {}, ...asked.map(([name, quantity, at, told]) =>
        make("tr", {}, make("th", { scope: "row" }, name), ...tiers.map((tier) => cell(quantity, { ...at, tier }, told))))));
  };

  const tellSources = (scenario) => {
    const preset = page.presets.find((each) => each.key === chosen("hardware"));
    const leaves = { ...page.leaves, ...preset.leaves };
    if (!leaves["serving.prefill.rate"]) Object.assign(leaves, page.rate.leaves);
    const model = chosen("model") === page.model ? SOURCE(page.leaves.model) : scenario.model.source;
    const own = (name, shown) => [name, shown, setting[name] === undefined ? null : "yours"];
    const rows = [
      ["Model", page.models[chosen("model")], model],
      ["Hardware", preset.label, SOURCE(preset.leaves["hardware.name"])],
      ["Prefill", scenario.serving.prefill.table ?? "a rate", scenario.serving.prefill.table ? "data/latency, tabulated" : SOURCE(leaves["serving.prefill.rate"])],
      ["Cache element", chosen("element"), setting.element ? "yours" : SOURCE(page.leaves["serving.element"])],
      ["First token from", chosen("first"), setting.first ? "yours" : SOURCE(page.leaves["serving.first_token_from"])],
      ["Rent of a byte", chosen("reading"), setting.reading ? "yours" : SOURCE(page.leaves["prices.reading"])],
      ...page.controls.filter((control) => !widgets[control.key].box.hidden).map((control) => {
        const now = control.key === "prefix" ? scenario.workload.prompt_tokens - scenario.workload.new_tokens : place(scenario, control.path);
        const shown = (x) => (x === null || x === undefined ? "none" : `${digits(x / control.base, 6)} ${control.unit}`);
        const leaf = SOURCE(leaves[control.leaf]);
        const scaled = control.key === "working-set" && perToken(scenario) !== perToken(page.scenario);
        const source = setting[control.key] !== undefined ? `yours; the scenario has ${shown(unset(plain(), control))}`
          : scaled ? `the scenario's working set in tokens, at this model's bytes; there: ${leaf}` : leaf || "default of the scenario format";
        return [capital(control.label), shown(now), source];
      }),
    ];
    parts.sources.replaceChildren(
      make("thead", {}, make("tr", {}, ...["Input", "Value", "Source"].map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, make("th", { scope: "row" }, row[0]), ...row.slice(1).map((part) => make("td", {}, part ?? ""))))));
  };

  // One pass from the setting to the page; what takes longer follows when the hand rests.

  let resting = 0;
  const update = () => {
    const scenario = made();
    root.scenario = scenario; // for whoever looks from the console
    refreshChoices(scenario);
    const answers = Object.fromEntries(
      ["sizes", "recoveries", "loads", "slacks", "costs", "capacities", "intervals"].map((name) =>
        [name, attempt(() => formulas[name](scenario))]));
    answers.crossovers = { rows: [], refusal: null };
    const refused = answers.slacks.refusal ?? answers.recoveries.refusal;
    results.classList.toggle("refused", Boolean(refused));
    parts.refusal.hidden = !refused;
    parts.numbers.closest("details").hidden = Boolean(refused);
    parts.refusal.textContent = refused ? `${capital(refused.found)}; expected ${refused.expected}.` : "";
    const tabulated = scenario.serving.prefill.table;
    for (const told of kinds) {
      told.replaceChildren(make("span", { class: "kind-predicted" }, "predicted"),
        ...(tabulated ? [" from a prefill that is ", make("span", { class: "kind-tabulated" }, "tabulated")] : []));
    }
    clearTimeout(resting);
    if (refused) {
      parts.strip.replaceChildren();
      resting = setTimeout(() => settle(scenario, answers, parts.refusal.textContent), 300);
      return;
    }
    tellSlack(scenario, answers);
    tellWorth(scenario, answers);
    tellKeep(scenario, answers);
    tellNumbers(scenario, answers);
    resting = setTimeout(() => settle(scenario, answers), 120);
  };
  const settle = (scenario, answers, refusal = null) => {
    tellSources(scenario);
    write();
    if (refusal) {
      parts.status.textContent = refusal;
      return;
    }
    answers.crossovers = attempt(() => formulas.crossovers(scenario));
    const verdict = tellSlack(scenario, answers);
    const worth = tellWorth(scenario, answers);
    tellNumbers(scenario, answers);
    drawCurves(scenario);
    drawCapacity(scenario);
    parts.status.textContent = `${verdict} ${worth}`;
  };

  // The address

  const write = () => {
    const told = Object.entries(setting).map(([name, set]) =>
      [name, name in controls ? Number((set / controls[name].base).toPrecision(6)) : set]);
    const hash = new URLSearchParams(told).toString();
    if (hash !== location.hash.slice(1)) history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  };
  const read = () => {
    setting = {};
    for (const [name, written] of new URLSearchParams(location.hash.slice(1))) {
      if (name in controls) {
        const number = Number(written);
        if (written !== "" && Number.isFinite(number) && number >= 0) setting[name] = number * controls[name].base;
      } else if (name in CHOICES && (name === "prefill" || [...widgets[name].field.options].some((option) => option.value === written))) {
        setting[name] = written;
      }
    }
    update();
  };
  addEventListener("hashchange", read);
  read();
  new ResizeObserver(update).observe(results);
}
