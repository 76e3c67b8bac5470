// Elements, numbers with units, ways through the page, and its data.

const SVG = 'http://www.w3.org/2000/svg';

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  // A child that is a string becomes text, never markup.
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ''));
  return node;
}

const element = (name, attributes, ...children) => build(document.createElement(name), attributes, children);
const drawn = (name, attributes, ...children) => build(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);

const grouped = (number) => String(number).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
const counted = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? '' : 's'}`;
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// Three digits that matter.
function digits(number) {
  if (number === 0) return '0';
  if (number >= 100) return grouped(Math.round(number));
  return number >= 10 ? number.toFixed(1) : number.toFixed(2);
}

function scaled(number, steps, units) {
  let at = 0;
  while (at < units.length - 1 && number >= steps) {
    number /= steps;
    at += 1;
  }
  return [number, units[at]];
}

function time(ns) {
  if (ns === null || ns === undefined) return '–';
  const [number, unit] = scaled(ns, 1000, ['ns', 'µs', 'ms', 's']);
  return `${unit === 'ns' ? number : digits(number)} ${unit}`;
}

function bytes(number) {
  const [value, unit] = scaled(number, 1000, ['B', 'kB', 'MB', 'GB', 'TB']);
  return `${unit === 'B' ? value : digits(value)} ${unit}`;
}

const rate = (number) => `${bytes(number)}/s`;
const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const peerName = (peer) => `${peer.address} QP ${peer.qp === null ? '?' : peer.qp}`;

const seconds = (ns) => `${(ns / 1e9).toFixed(6)} s`;

// Leads to a part of the page, again if it is in the address already.
function lead(hash) {
  if (location.hash === hash) window.dispatchEvent(new Event('hashchange'));
  else location.hash = hash;
}

// Shows the connections that fit a text.
function filterConnections(text) {
  const filter = byId('filter');
  filter.value = text;
  filter.dispatchEvent(new Event('input'));
  byId('connections').scrollIntoView();
  filter.focus({ preventScroll: true });
}

// A button that puts a text on the clipboard, and says so for a moment.
function copyButton(text) {
  const button = element(
    'button',
    { type: 'button', class: 'copy controls', 'aria-label': `Copy: ${text}` },
    'Copy',
  );
  button.addEventListener('click', async () => {
    button.textContent = (await copied(text)) ? 'Copied' : 'Not allowed: select the text';
    setTimeout(() => {
      button.textContent = 'Copy';
    }, 2000);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers offer no clipboard to pages of some origins; the old way asks for no permission.
    const area = element('textarea', { readonly: true, class: 'away' });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand('copy');
    area.remove();
    if (focused) focused.focus();
    return done;
  }
}

const DATA = JSON.parse(byId('data').textContent);
// The text is not needed any more, and is the largest part of the page.
byId('data').remove();

// Numbers of the findings of each connection, from 0.
const FINDINGS_OF = new Map();
DATA.findings.forEach((finding, at) => {
  for (const connection of finding.connections) {
    const known = FINDINGS_OF.get(connection);
    if (known) known.push(at);
    else FINDINGS_OF.set(connection, [at]);
  }
});
