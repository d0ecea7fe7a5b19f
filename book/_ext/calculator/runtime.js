// What translated Python needs at run time: its operators, its containers, and a little of numpy.
// A number is also an array without dimensions. What has no meaning throws, as it does in Python.
const $ = (() => {
  "use strict";

  class ValueError extends Error {}

  class InputError extends ValueError {
    constructor(where, found, expected) {
      super(`${where}: found ${found}, expected ${expected}`);
      Object.assign(this, { where, found, expected });
    }
  }

  class Nd {
    constructor(shape, data) {
      Object.assign(this, { shape, data });
    }
  }

  const ELLIPSIS = Symbol("...");
  const isScalar = (x) => typeof x === "number" || typeof x === "boolean";
  const isPlain = (x) => x !== null && Object.getPrototypeOf(x) === Object.prototype;
  const product = (shape) => shape.reduce((a, b) => a * b, 1);
  const nd = (shape, data) => (shape.length ? new Nd(shape, data) : data[0]);

  const fail = (what, ...values) => {
    throw new TypeError(`${what} of ${values.map((x) => x?.constructor?.name ?? x).join(", ")}`);
  };

  // Arrays

  const asarray = (x) => {
    if (x instanceof Nd || isScalar(x)) return x;
    if (x === null) return NaN;
    if (!Array.isArray(x)) return fail("an array", x);
    const parts = x.map(asarray);
    const inner = parts.length && parts[0] instanceof Nd ? parts[0].shape : [];
    const data = parts.flatMap((part) => (part instanceof Nd ? part.data : [part]));
    if (data.length !== parts.length * product(inner)) fail("a rectangular array", x);
    return new Nd([parts.length, ...inner], data);
  };
  const shapeOf = (x) => (x instanceof Nd ? x.shape : []);
  const dataOf = (x) => (x instanceof Nd ? x.data : [x]);

  const broadcastTo = (x, shape) => {
    const own = shapeOf(x);
    const lead = shape.length - own.length;
    const strides = own.map((n, i) => (n === 1 ? 0 : product(own.slice(i + 1))));
    const data = dataOf(x);
    return Array.from({ length: product(shape) }, (_, flat) => {
      let at = 0;
      for (let i = shape.length - 1; i >= 0; i--) {
        if (i >= lead) at += (flat % shape[i]) * strides[i - lead];
        flat = Math.floor(flat / shape[i]);
      }
      return data[at];
    });
  };
  const broadcast = (...given) => {
    const arrays = given.map(asarray);
    const dimensions = Math.max(...arrays.map((x) => shapeOf(x).length));
    const shape = Array.from({ length: dimensions }, (_, i) => {
      const sizes = arrays.map((x) => shapeOf(x).at(i - dimensions) ?? 1).filter((n) => n !== 1);
      if (new Set(sizes).size > 1) throw new ValueError("shapes that do not fit each other");
      return sizes[0] ?? 1;
    });
    return [shape, arrays.map((x) => broadcastTo(x, shape))];
  };
  const elementwise = (f) => (...given) => {
    if (given.every(isScalar)) return f(...given);
    const arrays = given.map(asarray);
    const lines = arrays.every((x) => !(x instanceof Nd) || x.shape.length === 1);
    const length = lines ? Math.max(...arrays.map((x) => dataOf(x).length)) : 0;
    if (arrays.every((x) => isScalar(x) || x.data.length === length)) {
      const at = (x, i) => (x instanceof Nd ? x.data[i] : x);
      return new Nd([length], Array.from({ length }, (_, i) => f(...arrays.map((x) => at(x, i)))));
    }
    const [shape, columns] = broadcast(...arrays);
    return nd(shape, columns[0].map((_, i) => f(...columns.map((column) => column[i]))));
  };
  const reduced = (f) => (x, { axis = null } = {}) => {
    const array = asarray(x);
    if (axis === null || shapeOf(array).length === 0) return f(dataOf(array));
    const shape = shapeOf(array);
    if (axis !== -1 && axis !== shape.length - 1) fail("a reduction but over the last axis", x);
    const length = shape.at(-1);
    const rows = Array.from({ length: product(shape.slice(0, -1)) }, (_, i) =>
      f(array.data.slice(i * length, (i + 1) * length)));
    return nd(shape.slice(0, -1), rows);
  };

  // Operators. Two numbers are the common case and go first.

  const operator = (f, other = fail.bind(null, "an operation")) => {
    const slow = elementwise(f);
    return (a, b) => {
      if (typeof a === "number" && typeof b === "number") return f(a, b);
      if (isScalar(a) && isScalar(b)) return slow(a, b);
      return a instanceof Nd || b instanceof Nd ? slow(a, b) : other(a, b);
    };
  };
  const areTexts = (a, b) => typeof a === "string" && typeof b === "string";
  const joined = (a, b) =>
    areTexts(a, b) ? a + b : Array.isArray(a) && Array.isArray(b) ? [...a, ...b] : fail("a sum", a, b);
  const repeated = (a, b) =>
    typeof a === "string" && isScalar(b) ? a.repeat(b) : fail("a product", a, b);
  const ordered = (f) => operator(f, (a, b) => (areTexts(a, b) ? f(a, b) : fail("an order", a, b)));
  const power = (a, b) => (a === 1 || b === 0 ? 1 : Math.pow(a, b));
  const logical = (f) => operator((a, b) =>
    (typeof a === "boolean" && typeof b === "boolean" ? f(a, b) : fail("bits", a, b)));

  const same = (a, b) => {
    if (Array.isArray(a) && Array.isArray(b)) {
      return a.length === b.length && a.every((x, i) => same(x, b[i]));
    }
    return isScalar(a) && isScalar(b) ? Number(a) === Number(b) : a === b;
  };
  const eq = (a, b) => (a instanceof Nd || b instanceof Nd ? elementwise(same)(a, b) : same(a, b));
  const invert = elementwise((x) => (typeof x === "boolean" ? !x : fail("bits", x)));

  const truth = (x) => {
    if (typeof x === "boolean") return x;
    if (typeof x === "number") return x !== 0;
    if (x === null) return false;
    if (typeof x === "string" || Array.isArray(x)) return x.length > 0;
    if (x instanceof Nd) return x.data.length === 1 ? truth(x.data[0]) : fail("the truth", x);
    return x === undefined ? fail("the truth", x) : !isPlain(x) || Object.keys(x).length > 0;
  };

  // Containers

  const iter = (x) => {
    if (Array.isArray(x)) return x;
    if (typeof x === "string") return [...x];
    if (x instanceof Nd) return Array.from({ length: x.shape[0] }, (_, i) => item(x, i));
    return isPlain(x) ? Object.keys(x) : fail("an iteration", x);
  };
  const unpack = (x, count) => {
    const parts = iter(x);
    if (parts.length !== count) throw new ValueError(`${parts.length} values for ${count} names`);
    return parts;
  };
  const place = (index, length) => {
    const at = index < 0 ? index + length : index;
    if (!Number.isInteger(at) || at < 0 || at >= length) throw new RangeError(`index ${index}`);
    return at;
  };
  const item = (x, index) => {
    if (x instanceof Nd || isScalar(x)) return element(x, index);
    if (Array.isArray(x) || typeof x === "string") return x[place(index, x.length)];
    if (x === null || !Object.hasOwn(x, index)) throw new RangeError(`no key ${index}`);
    return x[index];
  };
  const element = (x, index) => {
    if (index instanceof Nd) {
      const chosen = dataOf(x).filter((_, i) => index.data[i] === true);
      return new Nd([chosen.length], chosen);
    }
    const path = Array.isArray(index) ? index : [index];
    if (path.length === 0) return x;
    if (path.length === 2 && path[0] === ELLIPSIS && path[1] === null) {
      return new Nd([...shapeOf(x), 1], dataOf(x));
    }
    if (typeof x === "boolean" || typeof x === "number") return path[0] ? x : element(asarray([x]), 1);
    const [first, ...rest] = path;
    const size = product(x.shape.slice(1));
    const at = place(first, x.shape[0]) * size;
    const inner = nd(x.shape.slice(1), x.data.slice(at, at + size));
    return rest.length ? element(inner, rest) : inner;
  };
  const attr = (x, name) => {
    if (x instanceof Nd || isScalar(x)) {
      if (name === "size") return dataOf(x).length;
      if (name === "shape") return shapeOf(x);
      if (name === "flat") return dataOf(x);
    } else if (x !== null && x !== undefined) {
      if (x[name] !== undefined) return x[name];
      if (isPlain(x) && Object.hasOwn(properties, name)) return properties[name](x);
      if (isPlain(x) && (Object.hasOwn(methods, name) || Object.hasOwn(METHODS, name))) {
        return (...given) => method(x, name, ...given);
      }
    }
    return fail(`no attribute ${name}`, x);
  };

  const METHODS = {
    items: (x) => Object.entries(x),
    values: (x) => Object.values(x),
    get: (x, key, otherwise = null) => (Object.hasOwn(x, key) ? x[key] : otherwise),
    append: (x, value) => (x.push(value), null),
    join: (x, parts) => iter(parts).join(x),
    rpartition: (x, by) => {
      const at = x.lastIndexOf(by);
      return at < 0 ? ["", "", x] : [x.slice(0, at), by, x.slice(at + by.length)];
    },
    min: (x) => least(dataOf(x)),
    max: (x) => most(dataOf(x)),
  };
  // Of value objects, as functions of the object: a translation adds its own.
  const methods = {};
  const properties = {};
  const method = (x, name, ...given) => {
    if (x !== null && isPlain(x)) {
      if (typeof x[name] === "function") return x[name](...given);
      if (Object.hasOwn(methods, name)) return methods[name](x, ...given);
    }
    if (!Object.hasOwn(METHODS, name) || x === null) return fail(`no method ${name}`, x);
    return METHODS[name](x, ...given);
  };
  const contains = (x, value) =>
    typeof x === "string" ? x.includes(value) : iter(x).some((y) => same(y, value));
  const named = (given, taken) => {
    const twice = taken.find((name) => Object.hasOwn(given, name));
    return twice === undefined ? given : fail(`the argument ${twice} twice`);
  };

  // Built-in functions

  const total = (data) => data.reduce((a, b) => add(a, b), 0);
  const least = (data) => Math.min(...data);
  const most = (data) => Math.max(...data);
  const extreme = (before) => (...given) => {
    const options = isPlain(given.at(-1)) && given.length > 1 ? given.pop() : {};
    const parts = given.length === 1 ? iter(given[0]) : given;
    if (!parts.length) {
      if ("default" in options) return options.default;
      throw new ValueError("nothing to choose from");
    }
    const key = options.key ?? ((x) => x);
    return parts.reduce((best, x) => (before(key(x), key(best)) ? x : best));
  };
  const number = (x) => {
    if (isScalar(x)) return Number(x);
    if (x instanceof Nd && x.data.length === 1) return Number(x.data[0]);
    return typeof x === "string" && x.trim() !== "" ? Number(x) : fail("a number", x);
  };
  const builtins = {
    float: number,
    int: (x) => Math.trunc(number(x)),
    bool: truth,
    len: (x) => iter(x).length,
    all: (x) => iter(x).every(truth),
    min: extreme((a, b) => lt(a, b)),
    max: extreme((a, b) => gt(a, b)),
    map: (f, ...xs) => builtins.zip(...xs).map((given) => f(...given)),
    zip: (...given) => {
      const { strict = false } = isPlain(given.at(-1)) ? given.pop() : {};
      const lists = given.map(iter);
      const length = least(lists.map((list) => list.length));
      if (strict && lists.some((list) => list.length !== length)) fail("lists of one length");
      return Array.from({ length }, (_, i) => lists.map((list) => list[i]));
    },
    enumerate: (x) => iter(x).map((value, i) => [i, value]),
    range: (a, b) => {
      const [from, to] = b === undefined ? [0, a] : [a, b];
      return Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
    },
    list: (x) => [...iter(x)],
    dict: (x) => (isPlain(x) ? { ...x } : Object.fromEntries(iter(x))),
    getattr: attr,
    repr: (x) => format(x, "", "r"),
  };

  // Texts

  const general = (x, digits) => {
    if (x === 0) return "0";
    const [mantissa, exponent] = x.toExponential(Math.max(digits, 1) - 1).split("e");
    const bare = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    if (exponent < -4 || exponent >= Math.max(digits, 1)) {
      const size = String(Math.abs(exponent)).padStart(2, "0");
      return `${bare(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
    }
    return bare(x.toFixed(Math.max(0, digits - 1 - exponent)));
  };
  const format = (x, spec = "", conversion = "") => {
    if (conversion === "r" && typeof x === "string") return `'${x}'`;
    if (x === null) return "None";
    if (x instanceof Error) return x.message;
    if (typeof x === "boolean") return x ? "True" : "False";
    if (spec === "") return String(x);
    const [, comma, digits, kind] = /^(,?)(?:\.(\d+))?([fg])$/.exec(spec) ?? fail(`format ${spec}`);
    const value = number(x);
    if (!Number.isFinite(value)) return String(value).replace("Infinity", "inf").toLowerCase();
    const size = digits === undefined ? 6 : Number(digits);
    const text = kind === "f" ? value.toFixed(size) : general(value, size);
    return comma ? text.replace(/\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ",")) : text;
  };

  // numpy

  const linspace = (start, stop, count = 50) =>
    Array.from({ length: count }, (_, i) =>
      i === count - 1 ? stop : start + i * ((stop - start) / (count - 1)));
  const rint = (x) => {
    const floor = Math.floor(x);
    const apart = x - floor;
    return apart < 0.5 || (apart === 0.5 && floor % 2 === 0) ? floor : floor + 1;
  };
  const np = {
    asarray,
    array: asarray,
    broadcast_arrays: (...given) => {
      const [shape, columns] = broadcast(...given);
      return columns.map((column) => nd(shape, column));
    },
    add: elementwise((a, b) => a + b),
    subtract: elementwise((a, b) => a - b),
    multiply: elementwise((a, b) => a * b),
    divide: elementwise((a, b) => a / b),
    power: elementwise(power),
    minimum: elementwise((a, b) => Math.min(a, b)),
    maximum: elementwise((a, b) => Math.max(a, b)),
    clip: elementwise((x, low, high) => Math.min(Math.max(x, low), high)),
    exp: elementwise(Math.exp),
    ceil: elementwise(Math.ceil),
    floor: elementwise(Math.floor),
    rint: elementwise(rint),
    where: elementwise((holds, a, b) => (truth(holds) ? a : b)),
    greater: elementwise((a, b) => a > b),
    greater_equal: elementwise((a, b) => a >= b),
    less: elementwise((a, b) => a < b),
    less_equal: elementwise((a, b) => a <= b),
    all: reduced((data) => data.every(truth)),
    sum: reduced(total),
    linspace: (...given) => asarray(linspace(...given)),
    geomspace: (start, stop, count) => {
      const exponents = linspace(Math.log10(start), Math.log10(stop), count);
      const between = exponents.slice(1, -1).map((x) => Math.pow(10, x));
      return asarray([start, ...between, stop]);
    },
    unique: (x) => asarray([...new Set(dataOf(asarray(x)))].sort((a, b) => a - b)),
    searchsorted: (axis, points, { side = "left" } = {}) =>
      elementwise((x) => {
        const at = dataOf(axis).findIndex((y) => (side === "right" ? y > x : y >= x));
        return at < 0 ? dataOf(axis).length : at;
      })(asarray(points)),
  };
  const add = operator((a, b) => a + b, joined);
  const lt = ordered((a, b) => a < b);
  const gt = ordered((a, b) => a > b);

  return {
    ...{ ValueError, InputError, Nd, ELLIPSIS, np, asarray },
    ...{ truth, iter, unpack, item, attr, method, methods, properties, contains, named, format },
    ...{ add, lt, gt, eq, invert },
    builtins,
    sub: operator((a, b) => a - b),
    mul: operator((a, b) => a * b, repeated),
    div: operator((a, b) => a / b),
    floordiv: operator((a, b) => Math.floor(a / b)),
    pow: operator(power),
    and: logical((a, b) => a && b),
    or: logical((a, b) => a || b),
    le: ordered((a, b) => a <= b),
    ge: ordered((a, b) => a >= b),
    ne: (a, b) => invert(eq(a, b)),
    neg: elementwise((x) => -x),
  };
})();
