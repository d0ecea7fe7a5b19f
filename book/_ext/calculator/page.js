// The page: inputs, sentences and numbers around `formulas`. No equation stands here.

const capital = (words) => words[0].toUpperCase() + words.slice(1);
const listed = (parts) =>
  parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : parts.join("");
const count = (x) => Math.round(x).toLocaleString("en");
const digits = (x, significant = 3) =>
  x.toLocaleString("en", { maximumSignificantDigits: significant });
const percent = (x, significant = 3) => `${digits(100 * x, significant)}\u00a0%`;

// A value in the largest unit in which it is at least one; units are [name, base], ascending.
const inUnits = (x, units) => {
  if (x === 0) return `0\u00a0${units[0][0]}`;
  const [unit, base] = units.filter(([, each]) => Math.abs(x) >= each * 0.9995).at(-1) ?? units[0];
  const told = digits(x / base);
  const plural = ["hour", "day", "year"].includes(unit) && told !== "1" ? "s" : "";
  return `${told}\u00a0${unit.replace("us", "µs")}${plural}`;
};

// Rows of a quantity at coordinates, and the value of the first.
const matching = (rows, quantity, at = {}) =>
  rows.filter((row) => row.quantity === quantity && Object.keys(at).every((name) => row[name] === at[name]));
const value = (rows, quantity, at) => matching(rows, quantity, at)[0]?.value;

// What a function gives, or what it refuses.
const attempt = (calculate) => {
  try {
    return { rows: calculate(), refusal: null };
  } catch (error) {
    if (!(error instanceof $.InputError)) throw error;
    return { rows: [], refusal: error };
  }
};

const place = (part, path) => path.reduce((at, name) => at?.[name], part);
const put = (part, path, set) => {
  const holder = place(part, path.slice(0, -1));
  if (holder) holder[path.at(-1)] = set;
};

// The setting is what the reader changed; the scenario of the page follows from it.
const settings = (page) => {
  const own = page.scenario;
  const models = (key) => (key === page.model ? own.model : $models(key));
  const perToken = (scenario) => value(formulas.sizes(scenario), "kv_bytes_per_token");
  const prefix = (scenario) => scenario.workload.prompt_tokens - scenario.workload.new_tokens;

  // How a prompt may be computed, the scenario's own way first: by a table of this model on these
  // GPUs, or by a rate.
  const prefills = (model, hardware) => {
    const { table, flops_per_s, active_params } = own.serving.prefill;
    const isOwn = model.name === own.model.name;
    const tables = page.tables
      .filter((each) => each.gpus === hardware.gpus && each.model === model.name)
      .map((each) => each.name);
    const known = (isOwn && active_params) || model.active_params;
    const widths = model.query_heads && model.qk_head_dim && model.v_head_dim;
    const rated = page.rate.flops_per_s && known && (widths || !model.groups.length);
    const ways = [...tables, ...(rated ? ["rate"] : [])];
    const first = isOwn ? (flops_per_s ? "rate" : table) : null;
    return ways.includes(first) ? [...new Set([first, ...ways])] : ways;
  };

  const defaults = {
    model: page.model,
    hardware: page.presets[0].key,
    element: own.serving.element,
    first: own.serving.first_token_from,
    reading: own.prices.reading,
  };
  const preset = (setting) =>
    page.presets.find((each) => each.key === (setting.hardware ?? defaults.hardware));

  // Model, hardware and ways as chosen, every number still the scenario's.
  const chosen = (setting) => {
    const of = (name) => setting[name] ?? defaults[name];
    const scenario = structuredClone(own);
    const { hardware, transfer } = structuredClone(preset(setting));
    const { serving } = scenario;
    if (of("model") !== page.model) {
      scenario.model = models(of("model"));
      serving.prefill.active_params = null;
    }
    scenario.hardware = hardware;
    serving.transfer = transfer;
    const ways = prefills(scenario.model, hardware);
    const way = ways.includes(setting.prefill) ? setting.prefill : ways[0];
    const rate = serving.prefill.flops_per_s ?? page.rate.flops_per_s;
    const rated = way === "rate";
    Object.assign(serving.prefill, { table: rated ? null : way, flops_per_s: rated ? rate : null });
    Object.assign(serving, { element: of("element"), first_token_from: of("first") });
    for (const end of ["prices", "low", "high"]) scenario[end].reading = of("reading");
    scenario.where = (key) => key;
    return scenario;
  };

  // What a number is while the reader leaves it alone; the working set keeps its tokens.
  const unset = (setting, control) => {
    if (control.key === "prefix") return prefix(own);
    const scenario = chosen(setting);
    const stated = place(scenario, control.path);
    if (control.key !== "working-set" || stated === null) return stated;
    const before = perToken(own);
    return before ? (stated * perToken(scenario)) / before : stated;
  };

  const made = (setting) => {
    const scenario = chosen(setting);
    for (const control of page.controls) {
      const { key, path } = control;
      const set = setting[key] ?? unset(setting, control);
      if (key === "prefix") continue;
      put(scenario, path, set);
      if (key in setting && path[0] === "prices") {
        // A price of one's own has no band.
        for (const end of ["low", "high"]) put(scenario, [end, ...path.slice(1)], set);
      }
    }
    scenario.workload.prompt_tokens = (setting.prefix ?? prefix(own)) + scenario.workload.new_tokens;
    return scenario;
  };

  const current = (scenario, control) =>
    control.key === "prefix" ? prefix(scenario) : place(scenario, control.path) ?? null;

  return { defaults, models, prefills, preset, unset, made, current, prefix };
};

// The form: `changed(name, value)` is called with base units, or without a value to take it back.
const inputForm = (page, known, changed, reset) => {
  const STEPS = 300;
  const fields = {};

  const select = (name, label, options) => {
    const id = `calculator-${name}`;
    const field = make("select", { id, onchange: () => changed(name, field.value) },
      ...options.map(([key, shown]) => make("option", { value: key }, shown)));
    fields[name] = field;
    return make("div", { class: "choice" }, make("label", { for: id }, label), field);
  };

  const slider = (control) => {
    const { key, base, low, high, linear, unit } = control;
    const id = `calculator-${key}`;
    const label = capital(control.label);
    const whole = (x) => (unit === "tokens" ? Math.max(1, Math.round(x)) : x);
    const share = (x) => (linear ? (x - low) / (high - low) : Math.log(x / low) / Math.log(high / low));
    const range = make("input", {
      id, type: "range", min: 0, max: STEPS, step: 1,
      oninput: () => {
        const at = range.value / STEPS;
        const shown = linear ? low + at * (high - low) : low * (high / low) ** at;
        changed(key, Number(whole(shown).toPrecision(3)) * base);
      },
    });
    const field = make("input", {
      type: "number", step: "any", inputmode: "decimal", "aria-label": `${label} [${unit || "1"}]`,
      onchange: () => {
        const given = Number(field.value);
        if (field.value.trim() === "") changed(key);
        else if (Number.isFinite(given) && (given > 0 || given === low)) changed(key, whole(given) * base);
        else changed(key, known.setting()[key]);
      },
      onblur: () => changed(key, known.setting()[key]),
    });
    const box = make("div", { class: "slider" },
      make("label", { for: id }, `${label} `, make("span", {}, unit)), field, range);
    fields[key] = { box, show };
    return box;

    function show(scenario) {
      const { reading } = scenario.prices;
      const rated = scenario.serving.prefill.table === null ? "rate" : "table";
      const used = !control.when || [reading, rated].includes(control.when);
      const there = !control.tier || control.tier in scenario.hardware.tiers;
      box.hidden = !used || !there;
      const now = known.current(scenario, control);
      range.hidden = now === null;
      field.placeholder = now === null ? "none" : "";
      if (document.activeElement !== field) {
        field.value = now === null ? "" : Number((now / base).toPrecision(6));
      }
      if (now !== null) {
        range.value = Math.round(STEPS * between(share(now / base), 0, 1));
        range.setAttribute("aria-valuetext", `${digits(now / base, 4)} ${unit}`);
      }
      box.classList.toggle("changed", key in known.setting());
    }
  };

  const group = (name) => page.controls.filter((control) => control.group === name).map(slider);
  const fieldset = (name, ...content) => make("fieldset", {}, make("legend", {}, name), ...content);
  const groups = [...new Set(page.controls.map((control) => control.group))];
  const more = groups.pop();
  const sides = ["decode", "prefill"].map((side) => [side, `the ${side} side`]);
  const readings = [
    ["amortised", "bought, written off"], ["rented", "rented"], ["bundled", "comes with the GPU"],
  ];
  const form = make("form", {
    class: "inputs", "aria-label": "Inputs", onsubmit: (event) => event.preventDefault(),
  },
  fieldset("Model and hardware",
    select("model", "Model", Object.entries(page.models)),
    select("hardware", "Hardware", page.presets.map(({ key, label }) => [key, label]))),
  ...groups.map((name) => fieldset(name, ...group(name))),
  make("details", {}, make("summary", {}, more),
    select("prefill", "Prefill", []),
    select("element", "Cache element", page.elements.map((name) => [name, name])),
    select("first", "First token from", sides),
    select("reading", "Rent of a byte", readings),
    ...group(more)),
  make("p", { class: "reset" },
    make("button", { type: "button", onclick: reset }, "Reset to the scenario"),
    " The address of this page holds your setting."));

  const show = (scenario) => {
    const ways = known.prefills(scenario.model, scenario.hardware);
    fields.prefill.replaceChildren(...ways.map((way) =>
      make("option", { value: way }, way === "rate" ? "one rate for every length" : `tabulated, ${way}`)));
    fields.prefill.value = scenario.serving.prefill.table ?? "rate";
    for (const [name, otherwise] of Object.entries(known.defaults)) {
      fields[name].value = known.setting()[name] ?? otherwise;
    }
    for (const option of fields.model.options) {
      option.disabled = !known.prefills(known.models(option.value), scenario.hardware).length;
    }
    for (const control of page.controls) fields[control.key].show(scenario);
  };
  const offers = (name, key) => [...fields[name].options].some((option) => option.value === key);
  const hidden = (key) => fields[key].box.hidden;
  return { form, show, offers, hidden };
};

// The part with the answers, and what says them.
const answerPart = (page, known) => {
  const time = (x) => (x > 1e10 ? "more than 300\u00a0years" : inUnits(x, page.times));
  const size = (x) =>
    x === Infinity ? "any amount" : x > 0 && x < 1 ? "less than 1\u00a0B" : inUnits(x, page.sizes);
  const title = (tier) => capital(page.tiers[tier][0]);
  const spoken = (tier) => page.tiers[tier][1];
  const group = (tier) => `tier-${tier}`;
  const tiersOf = (rows) => [...new Set(rows.map((row) => row.tier))];

  const paragraph = (name) => make("p", { class: name });
  const list = () => make("ul", { class: "lines" });
  const figure = (name, caption) =>
    make("figure", { id: `calculator-${name}` }, make("figcaption", {}, make("p", {}, caption)));
  const folded = (name, table) => make("details", { class: "all" }, make("summary", {}, name),
    make("div", { class: "box", tabindex: 0, role: "group", "aria-label": name }, table));
  const at = {
    strip: make("ul", { class: "strip", "aria-hidden": "true" }),
    refusal: make("p", { class: "refusal", role: "alert", hidden: true }),
    kinds: [paragraph("kind"), paragraph("kind"), paragraph("kind")],
    fleet: paragraph("verdict"),
    nearest: paragraph("told"),
    cells: figure("cells",
      "Cost of each fleet at its own best, with its band over seeds; a cross where a target cannot "
      + "be met. The upright stroke is what the closed form predicts for the same fleet."),
    verdict: paragraph("verdict"),
    left: paragraph("told"),
    lines: list(),
    load: paragraph("told"),
    worth: list(),
    keep: list(),
    point: figure("point",
      "Time to have the prefix back, at your length. What ends in the shaded band is in time and "
      + "faster than recomputing."),
    curves: figure("curves",
      "The same at other lengths. A tier is usable while its line runs in the shaded area."),
    capacity: figure("capacity",
      "Break-even capacity of each tier alone against the tail exponent, with the band of dated "
      + "prices. Dots mark your exponent."),
    interval: figure("interval",
      "Break-even interval, from a GPU that waits while a prefix loads to loading that is free."),
    numbers: make("table", { class: "numbers" }),
    sources: make("table", { class: "sources" }),
    status: make("p", { class: "status", role: "status", "aria-live": "polite" }),
  };
  const section = (name, ...content) => make("section", {}, make("h2", {}, name), ...content);
  const numbers = folded("All numbers", at.numbers);
  const answers = make("div", { class: "answers" },
    section("Which tiers may a request wait for?",
      at.kinds[0], at.verdict, at.left, at.point, at.lines, at.load, at.curves),
    section("How much of a tier is worth buying?", at.kinds[1], at.worth, at.capacity),
    section("How long is a prefix worth keeping?", at.kinds[2], at.keep, at.interval));
  const simulated = section("Which fleet is cheapest?",
    make("p", { class: "kind" }, make("span", { class: "kind-simulated" }, "simulated")),
    at.fleet, at.nearest, at.cells);
  answers.append(simulated);
  const element = make("div", { class: "results" },
    at.strip, at.refusal, answers, numbers, folded("Inputs and their sources", at.sources));

  const item = (tier, told) =>
    make("li", { class: group(tier) }, make("b", {}, title(tier)), told);
  const none = (told) => [make("li", {}, told)];

  // What the rows say of one tier with split pools.
  const judged = ({ slacks, recoveries, crossovers }, tier) => {
    const says = (quantity, pool) => Boolean(value(slacks.rows, quantity, { tier, pool }));
    return {
      tier,
      fits: says("on_critical_path", "disaggregated"),
      fitsOne: says("on_critical_path", "one"),
      within: says("within_slack", "disaggregated"),
      rescued: says("two_ended_within_slack", "disaggregated"),
      seconds: value(recoveries.rows, "fetch_time_s", { tier }),
      both: value(recoveries.rows, "two_ended_time_s", { tier }),
      from: value(crossovers.rows, "crossover_tokens", { tier }),
    };
  };

  const reason = ({ fits, fitsOne, within, rescued, seconds, both, from }, left, recomputed) => {
    const told = [];
    if (fits) told.push(": wait for it.");
    else if (within) told.push(`: in time, but recomputing is faster (${time(recomputed)}).`);
    else if (left.split <= 0) told.push(": nothing is left to wait for it.");
    else {
      const slower = seconds >= recomputed ? ", and recomputing is faster" : "";
      told.push(` is ${time(seconds - left.split)} too late${slower}.`);
    }
    if (!fits && fitsOne) told.push(" In one pool it could be waited for.");
    if (!fits && !within && rescued) {
      told.push(` Fetching its back while computing its front takes ${time(both)}: in time.`);
    }
    if (Number.isNaN(from)) told.push(" At no length looked at does it beat recomputing.");
    else if (from > 256) told.push(` It beats recomputing from ${count(from)} tokens on.`);
    return told.join("");
  };

  const tellSlack = (scenario, answers) => {
    const { slacks, recoveries, loads } = answers;
    const tiers = Object.keys(scenario.hardware.tiers).map((tier) => judged(answers, tier));
    const slack = (pool) => value(slacks.rows, "ttft_slack_s", { pool });
    const left = { split: slack("disaggregated"), one: slack("one") };
    const cold = value(slacks.rows, "cold_ttft_s", { pool: "disaggregated" });
    const recomputed = value(recoveries.rows, "recompute_time_s");
    const { bytes } = matching(recoveries.rows, "fetch_time_s")[0];
    const target = scenario.slo.ttft_s;
    const [kept, lost] = [true, false].map((fits) =>
      tiers.filter((tier) => tier.fits === fits).map(({ tier }) => spoken(tier)));
    const no = left.split > 0
      ? "A request may wait for no tier."
      : "The target leaves no time for a fetch from any tier.";
    const some = `A request may wait for ${listed(kept)}, not for ${listed(lost)}.`;
    const verdict = !lost.length ? "A request may wait for every tier." : kept.length ? some : no;
    const rest = (x) => (x > 0 ? time(x) : `nothing (${time(-x)} too little)`);
    at.verdict.textContent = verdict;
    at.left.textContent =
      `A prefix of ${count(known.prefix(scenario))} tokens takes ${size(bytes)} of cache. The target of `
      + `${time(target)} leaves ${rest(left.split)} to fetch it when prefill and decode are split, `
      + `${rest(left.one)} in one pool. Recomputing it takes ${time(recomputed)}; without any cache the `
      + `first token comes after ${time(cold)}, ${cold <= target ? "within" : "beyond"} the target.`;
    at.strip.replaceChildren(...tiers.map(({ tier, fits }) =>
      make("li", { class: `${group(tier)} ${fits ? "yes" : "no"}` },
        make("b", {}, title(tier).replace(/^Host | tier$/, "")),
        make("span", {}, fits ? "wait" : "no"))));
    at.lines.replaceChildren(...tiers.map((tier) =>
      item(tier.tier, ` ${time(tier.seconds)}${reason(tier, left, recomputed)}`)));
    const busy = matching(loads.rows, "offered_load")
      .map((row) => `${spoken(row.tier)} ${percent(row.value, 2)}`);
    at.load.textContent = loads.refusal
      ? `${title(loads.refusal.where.split(".")[2])} could not keep up: ${loads.refusal.found}; `
        + `expected ${loads.refusal.expected}.`
      : "A tier that alone served every hit and stored every admitted miss would be busy: "
        + `${listed(busy)} of the time.`;
    const drawn = tiers.map(({ tier, seconds, fits }) =>
      `${title(tier)} ${time(seconds)}, ${fits ? "" : "not "}usable`);
    drawPoint(at.point,
      `Time to fetch the prefix: ${drawn.join("; ")}; recomputing ${time(recomputed)}; left for a fetch `
      + `${rest(left.split)}.`,
      {
        rows: tiers.map((tier) => ({ ...tier, name: title(tier.tier), group: group(tier.tier) })),
        recomputed, left, time,
      });
    return verdict;
  };

  const showCurves = (scenario) => {
    const { prefill } = scenario.serving;
    const prefix = known.prefix(scenario);
    const { low, high } = page.controls.find((control) => control.key === "prefix");
    const tabulated = prefill.table && $tables(prefill.table).new_tokens.data.at(-1);
    const end = tabulated ? tabulated - scenario.workload.new_tokens : Math.max(high, prefix * 1.3);
    const lengths = $.np.geomspace(Math.min(low, prefix / 1.3), end, 48).data;
    const slacks = formulas.slacks(scenario, lengths);
    const recoveries = formulas.recoveries(scenario, lengths);
    const points = (rows, quantity, where) =>
      matching(rows, quantity, where).map((row) => [row.tokens, row.value]);
    drawCurves(at.curves,
      `Time against prefix length from ${count(lengths[0])} to ${count(end)} tokens, for fetching from `
      + "each tier, for recomputing, and what the target leaves; your length is marked.",
      {
        lines: Object.keys(scenario.hardware.tiers).map((tier) => ({
          name: title(tier), group: group(tier), points: points(recoveries, "fetch_time_s", { tier }),
        })),
        recomputed: points(recoveries, "recompute_time_s"),
        left: {
          split: points(slacks, "ttft_slack_s", { pool: "disaggregated" }),
          one: points(slacks, "ttft_slack_s", { pool: "one" }),
        },
        target: scenario.slo.ttft_s, mine: prefix, time,
      });
  };

  const worth = (scenario, rows, tier) => {
    const read = (quantity, band) => value(rows, quantity, { tier, band });
    const [middle, low, high] = ["middle", "low", "high"].map((band) => read("worth_buying_bytes", band));
    const ratio = read("marginal_ratio", "middle");
    const working = size(scenario.workload.working_set_bytes);
    const isPath = matching(rows, "marginal_ratio", { tier })[0].use === "critical path";
    const use = isPath ? "" : ", as a source of prefetches";
    if (ratio === 0) return ": buy none. It is off the critical path, and no prefetch of it comes in time.";
    if (ratio === Infinity) {
      const held = scenario.hardware.tiers[tier].capacity_bytes;
      return `: one more byte has no rent. Use what there is, ${size(held)}.`;
    }
    const margin = `The marginal ratio at the working set of ${working} is ${digits(ratio, 2)}`;
    if (middle < 1e6) return `${use}: next to nothing, ${size(high)} at best. ${margin}.`;
    const band = size(low) === size(high) ? "" : ` (${size(low)} to ${size(high)} over the band of prices)`;
    const branch = ratio >= 1
      ? "the whole working set earns its rent"
      : "the last bytes of the working set do not earn their rent";
    return `${use}: ${size(middle)}${band}. ${margin}: ${branch}.`;
  };

  const tellWorth = (scenario, { capacities: { rows, refusal } }) => {
    const tiers = tiersOf(rows);
    const why = refusal ? refusal.message
      : scenario.workload.working_set_bytes === null ? "There is no working set to buy for."
      : "No tier has a price.";
    const told = tiers.map((tier) => item(tier, worth(scenario, rows, tier)));
    at.worth.replaceChildren(...(told.length ? told : none(why)));
    return told.map((each) => each.textContent).join(" ");
  };

  const showCapacity = (scenario) => {
    const working = scenario.workload.working_set_bytes;
    const { low, high } = page.controls.find((control) => control.key === "beta");
    const exponents = $.np.linspace(low, high, 46).data;
    const { rows } = attempt(() => formulas.capacities(scenario, exponents));
    const { rows: here } = attempt(() => formulas.capacities(scenario));
    const tiers = tiersOf(rows);
    at.capacity.hidden = !tiers.length;
    if (!tiers.length) return;
    const points = (tier, band) =>
      matching(rows, "break_even_bytes", { tier, band }).map((row) => [row.beta, row.value]);
    drawCapacity(at.capacity,
      `Break-even capacity against the tail exponent from ${low} to ${high} for `
      + `${listed(tiers.map(spoken))}; the working set is ${size(working)}.`,
      {
        lines: tiers.map((tier) => ({
          name: title(tier), group: group(tier), low: points(tier, "low"),
          middle: points(tier, "middle"), high: points(tier, "high"),
          here: value(here, "break_even_bytes", { tier, band: "middle" }),
        })),
        working, mine: scenario.workload.tail_exponent, size,
      });
  };

  const tellKeep = ({ intervals: { rows, refusal } }) => {
    const spans = tiersOf(rows).map((tier) => ({
      tier, name: title(tier), group: group(tier),
      from: value(rows, "break_even_interval_s", { tier, loading: "gpu waits" }),
      to: value(rows, "break_even_interval_s", { tier, loading: "free" }),
    }));
    const told = spans.map(({ tier, from, to }) => item(tier, from > 0
      ? `: keep a prefix that comes back for certain within ${time(from)} (the GPU waits while it `
        + `loads) to ${time(to)} (loading is free).`
      : `: up to ${time(to)} if loading is free; not at all if the GPU waits while it loads.`));
    const why = refusal ? refusal.message : "No tier has a rent.";
    at.keep.replaceChildren(...(told.length ? told : none(why)));
    at.interval.hidden = !spans.length;
    if (!spans.length) return;
    const drawn = spans.map(({ name, from, to }) => `${name} ${time(from)} to ${time(to)}`);
    drawInterval(at.interval, `Break-even interval: ${drawn.join("; ")}.`, { spans, time });
  };

  // The replayed case nearest to the setting: of the same model, then by targets, and of the
  // scenario's log unless the reader asks for another reuse.
  const FLEETS = {
    none: "One pool, HBM only", tiered: "One pool, tiers",
    disaggregated: "Split, HBM only", both: "Split, tiers",
  };
  const nearestTo = ({ slo, workload, model }) => {
    const factor = (a, b) => Math.abs(Math.log(a / b));
    const reuse = ({ own, at: replayed }) => {
      const other = Math.abs(workload.ceiling - replayed.ceiling);
      if ("ceiling" in known.setting()) return other;
      return own || replayed.trace === workload.trace ? 0 : 1 + other;
    };
    const apart = (each) =>
      factor(slo.ttft_s, each.at.ttft_slo_s) + factor(slo.tpot_s, each.at.tpot_slo_s) + reuse(each);
    return page.cases
      .filter((each) => model.name.endsWith(each.at.model))
      .sort((a, b) => apart(a) - apart(b))[0];
  };
  const tellCells = (scenario) => {
    simulated.hidden = !page.cases.length;
    if (simulated.hidden) return;
    const nearest = nearestTo(scenario);
    at.cells.hidden = !nearest;
    if (!nearest) {
      const models = [...new Set(page.cases.map((each) => each.at.model))];
      at.fleet.textContent = "No fleet of this model was replayed.";
      at.nearest.textContent = `Pick ${listed(models).replace(/ and (?=[^,]*$)/, " or ")} to see one.`;
      return;
    }
    const { model, trace, ttft_slo_s, tpot_slo_s, ceiling } = nearest.at;
    const cells = Object.keys(FLEETS).map((name) => ({ name: FLEETS[name], ...nearest.cells[name] }));
    const ranked = cells.filter((cell) => !cell.binding).sort((a, b) => a.middle - b.middle);
    const usd = (x) => `${digits(x)}\u00a0USD`;
    const [best, second] = ranked;
    const lead = second
      ? `, ${percent(1 - best.middle / second.middle, 2)} below ${second.name.replace(/^./, (c) => c.toLowerCase())}`
      : "";
    const noise = second && (best.high ?? best.middle) >= (second.low ?? second.middle)
      ? " Their bands overlap: take neither for the cheaper." : "";
    at.fleet.textContent = best ? `${best.name}: ${usd(best.middle)} a million output tokens${lead}.${noise}`
      : "No fleet meets the targets.";
    const unmet = cells.filter((cell) => cell.binding)
      .map((cell) => `${cell.name} cannot meet the ${cell.binding.toUpperCase()} target.`);
    const beside = (told, own, x) => (told(own) === told(x) ? told(x) : `${told(x)} (yours ${told(own)})`);
    const { slo, workload } = scenario;
    const paid = Object.entries(nearest.prices).map(([what, price]) => `${what} at ${price}`);
    const dragged = page.controls.some(({ key, path }) => path[0] === "prices" && key in known.setting());
    at.nearest.textContent =
      `Of ${count(page.cases.length)} replayed cases this is the nearest: ${model}, the log `
      + `${trace.replaceAll("_", " ")}; a target of ${beside(time, slo.ttft_s, ttft_slo_s)} for the first token `
      + `and ${beside(time, slo.tpot_s, tpot_slo_s)} for each next one; a ceiling of `
      + `${beside((x) => percent(x, 2), workload.ceiling, ceiling)}. Its prices: ${listed(paid)}. `
      + (dragged ? "Yours do not move it: each fleet chose its split and its sizes at those prices. " : "")
      + "Sliders choose among the cases and compute nothing here. " + unmet.join(" ");
    const drawn = cells.map((cell) => `${cell.name} ${cell.binding ? "not feasible" : usd(cell.middle)}`);
    drawCells(at.cells, `USD per million output tokens: ${drawn.join("; ")}.`, { cells, usd });
  };

  const heads = (...names) =>
    make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name))));
  const body = (rows) => make("tbody", {}, ...rows.map(([name, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", {}, cell)))));

  const NUMBERS = [
    ["fetch", "fetch_time_s", {}, time],
    ["recovery, the better way", "recovery_time_s", {}, time],
    ["recovery from both ends", "two_ended_time_s", {}, time],
    ["first token, pools split", "ttft_s", { pool: "disaggregated" }, time],
    ["first token, one pool", "ttft_s", { pool: "one" }, time],
    ["most that can be fetched in time", "max_fetch_bytes", { pool: "disaggregated" }, size],
    ["fetching beats recomputing from [tokens]", "crossover_tokens", {},
      (x) => (Number.isNaN(x) ? "never" : count(x))],
    ["load, if it alone serves all hits", "offered_load", {}, percent],
    ["mean fetch under that load", "shared_fetch_time_s", {}, time],
    ["rent [USD/GB/month]", "rent_usd_per_byte_s", {}, (x) => digits(x / page.rent_unit)],
    ["share of a hit's value", "share_of_value", {}, percent],
    ["marginal ratio", "marginal_ratio", { band: "middle" }, digits],
    ["break-even capacity", "break_even_bytes", { band: "middle" }, size],
    ["worth buying", "worth_buying_bytes", { band: "middle" }, size],
    ["interval, the GPU waits", "break_even_interval_s", { loading: "gpu waits" }, time],
    ["interval, loading is free", "break_even_interval_s", { loading: "free" }, time],
    ["written over, times a day", "drive_writes_per_day", {}, digits],
    ["life", "life_s", {}, time],
  ];
  const tellNumbers = (scenario, answers) => {
    const tiers = Object.keys(scenario.hardware.tiers);
    const rows = Object.values(answers).flatMap((answer) => answer.rows);
    at.numbers.replaceChildren(heads("Quantity", ...tiers.map(title)), body(NUMBERS.map(
      ([name, quantity, where, told]) => [name, ...tiers.map((tier) => {
        const found = value(rows, quantity, { ...where, tier });
        return found === undefined ? "–" : told(found);
      })])));
  };

  const tellSources = (scenario, hidden) => {
    const setting = known.setting();
    const preset = known.preset(setting);
    const leaves = { ...page.rate.leaves, ...page.leaves, ...preset.leaves };
    const source = (leaf) =>
      leaves[leaf] ? [leaves[leaf].source ?? "no source", leaves[leaf].date].filter(Boolean).join(", ")
      : "default of the scenario format";
    const chosen = (name, leaf) => (name in setting ? "yours" : source(leaf));
    const { table } = scenario.serving.prefill;
    const model = "model" in setting ? scenario.model.source : source("model");
    const rows = [
      ["Model", page.models[setting.model ?? page.model], model],
      ["Hardware", preset.label, source("hardware.name")],
      ["Prefill", table ?? "a rate", table ? "data/latency, tabulated" : source("serving.prefill.rate")],
      ["Cache element", scenario.serving.element, chosen("element", "serving.element")],
      ["First token from", scenario.serving.first_token_from, chosen("first", "serving.first_token_from")],
      ["Rent of a byte", scenario.prices.reading, chosen("reading", "prices.reading")],
    ];
    for (const control of page.controls.filter(({ key }) => !hidden(key))) {
      const shown = (x) => (x === null ? "none" : `${digits(x / control.base, 6)} ${control.unit}`);
      const now = known.current(scenario, control);
      const stated = place(page.scenario, control.path) ?? null;
      const own = known.unset(setting, control);
      const told = control.key in setting ? `yours; otherwise ${shown(own)}`
        : control.key === "working-set" && own !== stated
          ? `the scenario's tokens at this model's bytes; there ${shown(stated)}: ${source(control.leaf)}`
          : source(control.leaf);
      rows.push([capital(control.label), shown(now), told]);
    }
    at.sources.replaceChildren(heads("Input", "Value", "Source"), body(rows));
  };

  const tellKinds = (scenario) => {
    const kind = (name) => make("span", { class: `kind-${name}` }, name);
    for (const told of at.kinds) {
      told.replaceChildren(kind("predicted"),
        ...(scenario.serving.prefill.table ? [" from a prefill that is ", kind("tabulated")] : []));
    }
  };

  const refuse = (refusal) => {
    const told = refusal && `${capital(refusal.found)}; expected ${refusal.expected}.`;
    at.refusal.hidden = !refusal;
    at.refusal.textContent = told;
    for (const part of [at.strip, answers, numbers]) part.hidden = Boolean(refusal);
    return told;
  };

  return {
    element, status: at.status, refuse,
    // What follows at once, and what may wait until the hand rests.
    tell: (scenario, answers) => {
      tellKinds(scenario);
      tellKeep(answers);
      tellNumbers(scenario, answers);
      return `${tellSlack(scenario, answers)} ${tellWorth(scenario, answers)}`;
    },
    draw: (scenario) => {
      showCurves(scenario);
      showCapacity(scenario);
      tellCells(scenario);
    },
    tellSources,
  };
};

const show = (page) => {
  const AT_ONCE = ["sizes", "recoveries", "loads", "slacks", "costs", "capacities", "intervals"];
  const root = document.getElementById("calculator");
  const controls = Object.fromEntries(page.controls.map((control) => [control.key, control]));
  let setting = {};
  let resting = 0;
  const known = { ...settings(page), setting: () => setting };

  const changed = (name, to) => {
    const { [name]: _, ...rest } = setting;
    const same = to === undefined || to === known.defaults[name];
    setting = same ? rest : { ...rest, [name]: to };
    update();
  };
  const reset = () => {
    setting = {};
    update();
  };
  const inputs = inputForm(page, known, changed, reset);
  const answers = answerPart(page, known);
  root.append(inputs.form, answers.element, answers.status);

  // Inputs follow the hand, answers once a frame, and what takes longer when the hand rests.
  let frame = 0;
  const update = () => {
    const scenario = known.made(setting);
    root.scenario = scenario; // for whoever looks from the console
    inputs.show(scenario);
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(() => answer(scenario));
  };
  const answer = (scenario) => {
    const found = Object.fromEntries(
      AT_ONCE.map((name) => [name, attempt(() => formulas[name](scenario))]));
    found.crossovers = { rows: [] };
    const refusal = answers.refuse(found.slacks.refusal ?? found.recoveries.refusal);
    if (!refusal) answers.tell(scenario, found);
    clearTimeout(resting);
    resting = setTimeout(() => settle(scenario, found, refusal), 120);
  };
  const settle = (scenario, found, refusal) => {
    write();
    answers.tellSources(scenario, inputs.hidden);
    let told = refusal;
    if (!refusal) {
      found.crossovers = attempt(() => formulas.crossovers(scenario));
      told = answers.tell(scenario, found);
      answers.draw(scenario);
    }
    answers.status.textContent = told;
  };

  // The address holds the setting in the units of the page.
  const write = () => {
    const told = Object.entries(setting).map(([name, set]) =>
      [name, name in controls ? Number((set / controls[name].base).toPrecision(6)) : set]);
    const hash = new URLSearchParams(told).toString();
    if (hash === location.hash.slice(1)) return;
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  };
  const read = () => {
    setting = {};
    for (const [name, written] of new URLSearchParams(location.hash.slice(1))) {
      const number = written === "" ? NaN : Number(written);
      if (name in controls && number >= 0 && number < Infinity) setting[name] = number * controls[name].base;
      else if (name === "prefill" || (name in known.defaults && inputs.offers(name, written))) {
        setting[name] = written;
      }
    }
    update();
  };
  addEventListener("hashchange", read);
  read();
  new ResizeObserver(update).observe(answers.element);
};
