// The table of connections, which sorts and filters.
//
// The table has elements for the lines on the screen only; two empty rows take the place of those above and below.

const D = DATA.directions;
const LINES = D.connection.length;
const ROW_HEIGHT = 30; // as in the style
const PRINTED_ROWS = 60;

// Addresses in the order of their numbers: 10.0.0.9 before 10.0.0.10.
const ADDRESS_RANK = (() => {
  const order = new Intl.Collator('en', { numeric: true }).compare;
  const addresses = [...new Set([...D.from, ...D.to])].sort(order);
  return new Map(addresses.map((address, rank) => [address, rank]));
})();
const ADDRESS_STEP = 2 ** 25; // above all QP numbers
const endKey = (addresses, qps) => (line) => ADDRESS_RANK.get(addresses[line]) * ADDRESS_STEP + (qps[line] ?? -1);
const endName = (addresses, qps) => (line) => peerName({ address: addresses[line], qp: qps[line] });
const findingsOf = (line) => FINDINGS_OF.get(D.connection[line]) || [];
const repeatShare = (line) => D.repeats[line] / Math.max(D.requests[line], 1);

// A column. `key`: what sorts, null at the end in both directions; `text`: what is shown.
const column = (id, title, width, key, text, hint) => ({ id, title, width, key, text, hint });
// A first click on it sorts downwards, the largest first.
const amount = (...parts) => ({ ...column(...parts), number: true });
const of = (values) => (line) => values[line];
const shown = (values, text) => (line) => text(values[line]);

const COLUMNS = [
  column('connection', '#', 68, of(D.connection), shown(D.connection, String)),
  column('from', 'Requester', 176, endKey(D.from, D.from_qp), endName(D.from, D.from_qp)),
  column('to', 'Responder', 176, endKey(D.to, D.to_qp), endName(D.to, D.to_qp)),
  amount('messages', 'Messages', 94, of(D.messages), shown(D.messages, grouped)),
  amount('bytes', 'Data', 72, of(D.bytes), shown(D.bytes, bytes)),
  amount('rate', 'Rate', 84, of(D.rate), shown(D.rate, rate)),
  amount('p50', 'p50', 72, of(D.p50), shown(D.p50, time), 'Median latency'),
  amount('p99', 'p99', 72, of(D.p99), shown(D.p99, time), '99 of 100 messages took no longer'),
  amount('repeats', 'Repeats', 80, repeatShare, (line) => percent(repeatShare(line)), 'Request packets sent again'),
  amount('rnr', 'RNR', 60, of(D.rnr_naks), shown(D.rnr_naks, grouped), 'RNR NAKs'),
  amount('naks', 'NAKs', 68, of(D.sequence_naks), shown(D.sequence_naks, grouped), 'Sequence NAKs'),
  amount(
    'open',
    'Open',
    66,
    of(D.outstanding),
    shown(D.outstanding, grouped),
    'The most outstanding request packets',
  ),
  // The gravest finding of a connection decides.
  amount('findings', 'Findings', null, (line) => (findingsOf(line).length ? -findingsOf(line)[0] : null)),
];

const table = {
  order: new Uint32Array(0),
  sort: 'findings',
  up: false,
  filter: '',
  first: -1,
  haystacks: null,
  opened: null,
};

// What a filter looks into: addresses, QP and connection numbers, kinds of findings.
function haystack(line) {
  const kinds = findingsOf(line).flatMap((at) => [DATA.findings[at].kind, DATA.findings[at].title]);
  const end = (address, qp) => `${address} qp ${qp ?? '?'}`;
  const ends = [end(D.from[line], D.from_qp[line]), end(D.to[line], D.to_qp[line])];
  return ` #${D.connection[line]} ${[...ends, ...new Set(kinds)].join(' ')} `.toLowerCase();
}

// A word of digits is a whole number, so that 17 does not find 1700; other words may be parts.
function matcher(filter) {
  const words = filter
    .toLowerCase()
    .split(/\s+/)
    .filter(Boolean)
    .map((word) => {
      if (/^0x[0-9a-f]+$/.test(word)) return ` ${parseInt(word, 16)} `;
      return /^#?\d+$/.test(word) ? ` ${word} ` : word;
    });
  return (text) => words.every((word) => text.includes(word));
}

function arrange() {
  if (table.filter.trim() !== '' && !table.haystacks)
    table.haystacks = Array.from({ length: LINES }, (_, l) => haystack(l));
  const matches = matcher(table.filter);
  const lines = [];
  for (let line = 0; line < LINES; line += 1) {
    if (!table.haystacks || matches(table.haystacks[line])) lines.push(line);
  }
  const { key } = COLUMNS.find((column) => column.id === table.sort);
  const keys = new Map(lines.map((line) => [line, key(line)]));
  const way = table.up ? 1 : -1;
  table.order = lines.sort((a, b) => {
    const [one, other] = [keys.get(a), keys.get(b)];
    if (one === other) return a - b;
    if (one === null || other === null) return one === null ? 1 : -1;
    return way * (one - other);
  });
  renderHeads();
  byId('scroll').scrollTop = 0;
  byId('table').setAttribute('aria-rowcount', table.order.length + 1);
  byId('shown').textContent =
    table.order.length === LINES
      ? counted(LINES, 'line')
      : `${grouped(table.order.length)} of ${counted(LINES, 'line')}`;
  renderRows(true);
}

function renderHeads() {
  byId('heads').replaceChildren(
    ...COLUMNS.map((column) => {
      const sorted = column.id === table.sort;
      const head = element(
        'th',
        {
          scope: 'col',
          class: column.number && column.width ? 'num' : null,
          'data-column': column.id,
          'aria-sort': sorted ? (table.up ? 'ascending' : 'descending') : 'none',
        },
        element(
          'button',
          { type: 'button', title: column.hint, onclick: () => sortBy(column) },
          column.title,
          element('span', { 'aria-hidden': 'true' }, sorted ? (table.up ? ' ▲' : ' ▼') : ''),
        ),
      );
      if (column.width) head.style.width = `${column.width}px`;
      return head;
    }),
  );
}

function sortBy(column) {
  table.up = table.sort === column.id ? !table.up : !column.number;
  table.sort = column.id;
  arrange();
  document.querySelector(`th[data-column="${column.id}"] button`).focus({ preventScroll: true });
}

// Renders the lines that can be seen, and some around them.
function renderRows(always) {
  const scroll = byId('scroll');
  const visible = Math.ceil((scroll.clientHeight || 480) / ROW_HEIGHT);
  const first = Math.max(0, Math.floor(scroll.scrollTop / ROW_HEIGHT) - 10);
  if (!always && Math.abs(first - table.first) < 5) return;
  table.first = first;
  placeRows(first, Math.min(table.order.length, first + visible + 20));
}

function placeRows(first, end) {
  const focused = document.activeElement?.closest?.('#rows tr')?.dataset.line;
  const rows = [];
  for (let at = first; at < end; at += 1) rows.push(tableRow(table.order[at], at));
  if (table.order.length === 0) {
    const words = LINES === 0 ? 'No reliable connection was captured.' : 'No connection fits the filter.';
    rows.push(element('tr', { class: 'none' }, element('td', { colspan: COLUMNS.length }, words)));
  }
  byId('rows').replaceChildren(spacer(first), ...rows, spacer(table.order.length - end));
  if (focused) byId('rows').querySelector(`tr[data-line="${focused}"] button`)?.focus({ preventScroll: true });
}

function spacer(lines) {
  const row = element('tr', { class: 'spacer', 'aria-hidden': 'true' });
  row.style.height = `${Math.max(lines, 0) * ROW_HEIGHT}px`;
  return row;
}

function tableRow(line, at) {
  const id = D.connection[line];
  const open = () => lead(`#connection-${id}`);
  const attributes = {
    'data-line': line,
    'data-at': at,
    'aria-rowindex': at + 2,
    class: id === table.opened ? 'opened' : null,
    onclick: (event) => event.target.closest('a, button') || open(),
  };
  const cells = COLUMNS.map((column) => {
    if (column.id === 'findings') return findingsCell(line);
    const text = column.text(line);
    return element('td', { class: column.number ? 'num' : null, title: text }, tableContent(column, text, open));
  });
  return element('tr', attributes, cells);
}

function tableContent(column, text, open) {
  if (column.id === 'connection') {
    return element(
      'button',
      { type: 'button', class: 'plain', 'aria-label': `Connection ${text}`, onclick: open },
      text,
    );
  }
  if (column.number) return text;
  // A long address gives way to its QP number.
  const qp = text.lastIndexOf(' QP ');
  return element(
    'span',
    { class: 'end' },
    element('span', null, text.slice(0, qp)),
    element('span', null, text.slice(qp)),
  );
}

// A link for each kind; of several findings of a kind, to the gravest.
function findingsCell(line) {
  const firsts = new Map();
  for (const at of findingsOf(line))
    if (!firsts.has(DATA.findings[at].kind)) firsts.set(DATA.findings[at].kind, at);
  const titles = [...firsts.values()].map((at) => DATA.findings[at].title).join(', ');
  const links = [...firsts.values()].flatMap((at, index) => [
    index > 0 ? ', ' : '',
    element('a', { href: `#finding-${at + 1}` }, DATA.findings[at].title),
  ]);
  return element('td', { title: titles }, links);
}
