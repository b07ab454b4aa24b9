// Finds what a person with a screen reader, a keyboard or weak eyes would stumble over. The value of
// the whole file is a function that returns a list of complaints about the page as it is now. It leaves the colours of
// all texts with those behind them in window.textColours.
(() => {
  const colours = window.textColours = new Set();
  const complaints = [];
  const complain = (what, e) => complaints.push(`${what}: ${e ? e.outerHTML.slice(0, 160) : ''}`);
  const seen = e => e.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && e.getClientRects().length > 0;

  // Names: whatever can be used says what it is.
  const nameOf = e => {
    const by = e.getAttribute('aria-labelledby');
    if (by) return by.split(' ').map(id => document.getElementById(id)?.textContent ?? '').join(' ').trim();
    const label = e.getAttribute('aria-label') || (e.labels?.length ? [...e.labels].map(l => l.textContent).join(' ') : '');
    return (label || e.textContent || e.getAttribute('title') || '').trim();
  };
  for (const e of document.querySelectorAll('a[href], button, input, select, textarea, summary, [role=tab], canvas, [role=img]')) {
    const part = e.parentElement.closest('[role=img]'); // of a picture that has a name
    if (seen(e) && !part && !nameOf(e)) complain('no name', e);
  }
  for (const e of document.querySelectorAll('svg')) if (e.getAttribute('aria-hidden') !== 'true' && e.getAttribute('role') !== 'img') complain('a picture that is neither hidden nor named', e);

  // Structure: landmarks, one title, headings in order, tables with heads.
  if (document.querySelectorAll('main').length !== 1) complain('there is not one main');
  if ([...document.querySelectorAll('h1')].filter(seen).length !== 1) complain('there is not one h1');
  let level = 1;
  for (const e of [...document.querySelectorAll('main :is(h1, h2, h3, h4)')].filter(seen)) {
    const n = Number(e.tagName[1]);
    if (n > level + 1) complain(`a heading of level ${n} after one of level ${level}`, e);
    level = n;
  }
  for (const e of document.querySelectorAll('table')) if (seen(e) && !e.querySelector('th')) complain('a table without heads', e);
  for (const e of document.querySelectorAll('[role=tab]')) if (!e.hasAttribute('aria-selected') || !e.closest('[role=tablist]')) complain('a tab that is none', e);
  const ids = new Map();
  for (const e of document.querySelectorAll('[id]')) { if (ids.has(e.id)) complain('an id twice', e); ids.set(e.id, e); }
  if (!document.documentElement.lang) complain('the page has no language');

  // Focus: in the order of the page, and nothing that scrolls out of reach of the keyboard.
  for (const e of document.querySelectorAll('[tabindex]')) if (Number(e.getAttribute('tabindex')) > 0) complain('an order of its own', e);
  for (const e of document.querySelectorAll('[onclick], tr.opens')) if (e.matches('tr') && !e.querySelector('a, button, input')) complain('a row that the keyboard can not open', e);

  // Contrast of text: 4.5, or 3 if it is large.
  const channels = text => { const m = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0]; return { r: m[0], g: m[1], b: m[2], a: m[3] ?? 1 }; };
  const light = ({ r, g, b }) => [r, g, b].map(v => v / 255).map(v => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, below) => ({ r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a), b: top.b * top.a + below.b * (1 - top.a), a: 1 });
  const ground = e => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) { const c = channels(getComputedStyle(at).backgroundColor); if (c.a > 0) layers.push(c); if (c.a === 1) break; }
    return layers.reverse().reduce((below, top) => over(top, below), { r: 255, g: 255, b: 255, a: 1 });
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const told = new Set();
  for (let n = walker.nextNode(); n; n = walker.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || !seen(e) || e.closest(':disabled, .offscreen, .skip, option')) continue;
    const style = getComputedStyle(e), below = ground(e), color = over(channels(style.color), below);
    const [a, b] = [light(color), light(below)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    const px = parseFloat(style.fontSize), large = px >= 24 || (px >= 18.66 && Number(style.fontWeight) >= 700);
    const key = style.color + JSON.stringify(below);
    colours.add(key + large);
    if (ratio < (large ? 3 : 4.5) && !told.has(key)) { told.add(key); complain(`contrast ${ratio.toFixed(2)} of "${n.data.trim().slice(0, 30)}"`, e); }
  }

  // Nothing sticks out of the window to the side.
  if (document.documentElement.scrollWidth > innerWidth + 1) {
    const wide = [...document.querySelectorAll('main *')].find(e => seen(e) && e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.table-box, .tabs, .text, .md table'));
    complain(`the page is ${document.documentElement.scrollWidth} wide in a window of ${innerWidth}`, wide);
  }
  return complaints;
})
