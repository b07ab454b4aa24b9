// A terminal that only shows: text with colours, carriage returns, backspaces, tabs, and erasing. It keeps the newest
// lines. Other effects of sequences are left out: no title, no link, no clipboard, no answer, no bell. Other
// control characters are written out by safe.js when a line is shown.
//
// A line is a list of parts, [text, style]. Text at the end of a line is appended to its last part. Only a line that
// is written over becomes cells, one per character, until it is shown.

/** maxLines is how many lines are kept, and maxWidth how long one may be before it goes on in the next. */
export const maxLines = 20_000, maxWidth = 4000;
/** maxSequence is how long an escape sequence may be that is not complete yet. */
const maxSequence = 4096;

const sequence = new RegExp([
  /\x1b\[([0-?]*)[ -/]*([@-~])/, /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)/, /\x1b[PX^_][^\x1b]*\x1b\\/,
    /\x1b[ -/]*[0-OQ-WYZ\\`-~]/,
].map(r => r.source).join('|'), 'y');

/** unfinished is the beginning of a sequence whose end may come. */
const unfinished = /^\x1b(?:[[\]PX^_]|$|[ -/]*$)/;

const plain = { fg: '', bg: '', bold: false, dim: false, italic: false, under: false, inverse: false };

/** className is a style as classes of run.css. */
function className(s) {
  let { fg, bg } = s;
  if (s.inverse) [fg, bg] = [bg || 'paper', fg || 'ink'];
  return [fg && 'f-' + fg, bg && 'b-' + bg, s.bold && 'ansi-bold', s.dim && 'ansi-dim', s.italic && 'ansi-italic',
    s.under && 'ansi-under'].filter(Boolean).join(' ');
}

/** near is the one of the 16 colours that is nearest to a colour of 256, or of red, green and blue. */
function near(r, g, b) {
  const most = Math.max(r, g, b), least = Math.min(r, g, b);
  if (most - least < 40) return most < 64 ? 0 : most < 160 ? 8 : most < 224 ? 7 : 15;
  const on = v => (v > (most + least) / 2 ? 1 : 0);
  return (on(r) | (on(g) << 1) | (on(b) << 2)) + (most > 200 ? 8 : 0);
}

function of256(n) {
  if (n < 16) return n;
  if (n >= 232) { const v = 8 + (n - 232) * 10; return near(v, v, v); }
  const step = v => (v ? 55 + v * 40 : 0), i = n - 16;
  return near(step(Math.floor(i / 36)), step(Math.floor(i / 6) % 6), step(i % 6));
}

/** styled is a style after a sequence of colours (SGR). */
function styled(style, text) {
  const codes = text.split(/[;:]/).map(c => Number(c) || 0);
  let s = { ...style };
  for (let i = 0; i < codes.length; i++) {
    const c = codes[i];
    if (c === 0) s = { ...plain };
    else if (c === 1) s.bold = true;
    else if (c === 2) s.dim = true;
    else if (c === 3) s.italic = true;
    else if (c === 4) s.under = true;
    else if (c === 7) s.inverse = true;
    else if (c === 22) s.bold = s.dim = false;
    else if (c === 23) s.italic = false;
    else if (c === 24) s.under = false;
    else if (c === 27) s.inverse = false;
    else if (c >= 30 && c <= 37) s.fg = String(c - 30);
    else if (c >= 90 && c <= 97) s.fg = String(c - 82);
    else if (c === 39) s.fg = '';
    else if (c >= 40 && c <= 47) s.bg = String(c - 40);
    else if (c >= 100 && c <= 107) s.bg = String(c - 92);
    else if (c === 49) s.bg = '';
    else if (c === 38 || c === 48) {
      let colour = '';
      if (codes[i + 1] === 5) { colour = String(of256(codes[i + 2] & 255)); i += 2; }
      else if (codes[i + 1] === 2) { colour = String(near(codes[i + 2], codes[i + 3], codes[i + 4])); i += 4; }
      if (c === 38) s.fg = colour; else s.bg = colour;
    }
  }
  return s;
}

/** A Screen is what a terminal shows. */
export class Screen {
  constructor() {
    /** lines are those that are complete, and the current one at the end: parts with their classes. */
    this.lines = [/** @type {[string, string][]} */ ([])];
    /** dropped counts the lines that are not kept. */
    this.dropped = 0;
    this.style = plain;
    this.name = '';
    this.column = 0;
    this.width = 0;
    /** cells are the characters of the current line, if it is written over. */
    this.cells = /** @type {[string, string][]|null} */ (null);
    this.rest = '';
  }

  /** write takes text. A sequence that is not complete waits for the rest of it. */
  write(text) {
    text = this.rest + text;
    this.rest = '';
    const special = /[\x1b\r\n\b\t\x07\x00]/g;
    for (let at = 0; at < text.length;) {
      special.lastIndex = at;
      const next = special.exec(text)?.index ?? text.length;
      if (next > at) this.put(text.slice(at, next));
      if (next === text.length) return;
      at = next + 1;
      switch (text[next]) {
        case '\n': this.newLine(); break;
        case '\r': this.column = 0; break;
        case '\b': this.column = Math.max(0, this.column - 1); break;
        case '\t': this.put(' '.repeat(8 - (this.column % 8))); break;
        case '\x1b': {
          sequence.lastIndex = next;
          const m = sequence.exec(text);
          if (m) { at = sequence.lastIndex; if (m[2]) this.control(m[2], m[1]); }
          else if (text.length - next < maxSequence && unfinished.test(text.slice(next, next + 8))) {
            this.rest = text.slice(next);
            return;
          }
        }
      }
    }
  }

  /** control does what a sequence asks for. */
  control(what, text) {
    const n = Math.max(1, Number(text) || 1);
    switch (what) {
      case 'm': this.style = styled(this.style, text); this.name = className(this.style); break;
      case 'K': this.erase(Number(text) || 0); break;
      case 'G': this.column = Math.min(n - 1, maxWidth); break;
      case 'C': this.column = Math.min(this.column + n, maxWidth); break;
      case 'D': this.column = Math.max(0, this.column - n); break;
      case 'A': this.up(n); break;
      case 'F': this.up(n); this.column = 0; break;
    }
  }

  /** up goes back to a line above, as bars of progress of several lines do. */
  up(n) {
    this.settle();
    n = Math.min(n, this.lines.length - 1, 200);
    if (!n) return;
    // The lines below are written over in their turn.
    this.below = [...this.lines.splice(this.lines.length - n), ...(this.below ?? [])].slice(0, 200);
    this.width = this.lengthOf(this.lines.at(-1));
  }

  lengthOf(line) { return line.reduce((sum, [t]) => sum + t.length, 0); }

  erase(how) {
    this.explode();
    const cells = this.cells ?? [];
    if (how === 0) cells.length = Math.min(cells.length, this.column);
    else for (let i = 0; i < (how === 1 ? Math.min(this.column + 1, cells.length)
      : cells.length); i++) cells[i] = [' ', ''];
    if (how === 2) cells.length = 0;
    this.width = cells.length;
  }

  /** put writes text where the cursor is. */
  put(text) {
    while (text) {
      if (this.column >= maxWidth) this.newLine();
      const part = text.slice(0, maxWidth - this.column);
      text = text.slice(part.length);
      if (this.column === this.width && !this.cells) {
        const line = this.lines[this.lines.length - 1], last = line[line.length - 1];
        if (last && last[1] === this.name) last[0] += part;
        else line.push([part, this.name]);
      } else {
        this.explode();
        const cells = this.cells ?? [];
        while (cells.length < this.column) cells.push([' ', '']);
        for (let i = 0; i < part.length; i++) cells[this.column + i] = [part[i], this.name];
      }
      this.column += part.length;
      this.width = Math.max(this.width, this.column);
    }
  }

  explode() {
    if (this.cells) return;
    this.cells = [];
    for (const [t, name] of this.lines[this.lines.length - 1]) {
      for (let i = 0; i < t.length; i++) this.cells.push([t[i], name]);
    }
  }

  /** settle makes parts of cells again. */
  settle() {
    if (!this.cells) return;
    /** @type {[string, string][]} */
    const line = [];
    for (const [c, name] of this.cells) {
      const last = line[line.length - 1];
      if (last && last[1] === name) last[0] += c; else line.push([c, name]);
    }
    this.lines[this.lines.length - 1] = line;
    this.cells = null;
  }

  newLine() {
    this.settle();
    this.lines.push(this.below?.shift() ?? []);
    this.column = 0;
    this.width = this.lengthOf(this.lines[this.lines.length - 1]);
    if (this.lines.length > maxLines * 1.1) this.dropped += this.lines.splice(0, this.lines.length - maxLines).length;
  }

  /** shown are the lines to show. */
  shown() {
    this.settle();
    const all = this.below?.length ? [...this.lines, ...this.below] : this.lines;
    return all.at(-1)?.length ? all : all.slice(0, -1);
  }
}

/** textOf is a line without its styles. */
export const textOf = line => line.map(([t]) => t).join('');
