// The table of connections, which sorts and filters, and the view of one connection.
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

// `key`: what sorts, null at the end in both directions; `text`: what is shown; `up`: a first click sorts upwards.
const COLUMNS = [
  {
    id: 'connection',
    title: '#',
    width: 52,
    key: (l) => D.connection[l],
    text: (l) => String(D.connection[l]),
    up: true,
  },
  {
    id: 'from',
    title: 'Requester',
    width: 184,
    key: endKey(D.from, D.from_qp),
    text: endName(D.from, D.from_qp),
    up: true,
  },
  { id: 'to', title: 'Responder', width: 184, key: endKey(D.to, D.to_qp), text: endName(D.to, D.to_qp), up: true },
  {
    id: 'messages',
    title: 'Messages',
    width: 84,
    key: (l) => D.messages[l],
    text: (l) => grouped(D.messages[l]),
    number: true,
  },
  { id: 'bytes', title: 'Data', width: 78, key: (l) => D.bytes[l], text: (l) => bytes(D.bytes[l]), number: true },
  { id: 'rate', title: 'Rate', width: 88, key: (l) => D.rate[l], text: (l) => rate(D.rate[l]), number: true },
  {
    id: 'p50',
    title: 'p50',
    width: 76,
    key: (l) => D.p50[l],
    text: (l) => time(D.p50[l]),
    number: true,
    hint: 'Median latency',
  },
  {
    id: 'p99',
    title: 'p99',
    width: 76,
    key: (l) => D.p99[l],
    text: (l) => time(D.p99[l]),
    number: true,
    hint: '99 of 100 messages took no longer',
  },
  {
    id: 'repeats',
    title: 'Repeats',
    width: 78,
    key: repeatShare,
    text: (l) => percent(repeatShare(l)),
    number: true,
    hint: 'Share of request packets that were sent again',
  },
  {
    id: 'rnr',
    title: 'RNR',
    width: 60,
    key: (l) => D.rnr_naks[l],
    text: (l) => grouped(D.rnr_naks[l]),
    number: true,
    hint: 'RNR NAKs',
  },
  {
    id: 'naks',
    title: 'NAKs',
    width: 66,
    key: (l) => D.sequence_naks[l],
    text: (l) => grouped(D.sequence_naks[l]),
    number: true,
    hint: 'Sequence NAKs',
  },
  {
    id: 'open',
    title: 'Open',
    width: 66,
    key: (l) => D.outstanding[l],
    text: (l) => grouped(D.outstanding[l]),
    number: true,
    hint: 'The most outstanding request packets',
  },
  // The gravest finding of a connection decides.
  {
    id: 'findings',
    title: 'Findings',
    key: (l) => (findingsOf(l).length ? DATA.findings.length - findingsOf(l)[0] : 0),
  },
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
  return ` #${D.connection[line]} ${D.from[line]} qp ${D.from_qp[line] ?? '?'} ${D.to[line]} qp ${D.to_qp[line] ?? '?'} `
    .concat([...new Set(kinds)].join(' '), ' ')
    .toLowerCase();
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
          class: column.number ? 'num' : null,
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
  table.up = table.sort === column.id ? !table.up : Boolean(column.up);
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
  return element(
    'tr',
    {
      'data-line': line,
      'data-at': at,
      'aria-rowindex': at + 2,
      class: id === table.opened ? 'opened' : null,
      onclick: (event) => {
        if (!event.target.closest('a, button')) location.hash = `connection-${id}`;
      },
    },
    COLUMNS.map((column) => {
      if (column.id === 'findings') return findingsCell(line);
      const text = column.text(line);
      const open = () => {
        location.hash = `connection-${id}`;
        showConnection(id);
      };
      return element(
        'td',
        { class: column.number ? 'num' : null, title: text },
        column.id === 'connection'
          ? element(
              'button',
              { type: 'button', class: 'plain', 'aria-label': `Connection ${text}`, onclick: open },
              text,
            )
          : text,
      );
    }),
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

function filterConnections(text) {
  byId('filter').value = text;
  table.filter = text;
  arrange();
  byId('connections').scrollIntoView();
  byId('filter').focus({ preventScroll: true });
}

const PAIRINGS = {
  setup: 'Both directions were found by the messages that set up the connection.',
  psn: 'Both directions were found by their PSNs.',
  likely: 'Which directions belong together is likely, not certain.',
  'one-sided': 'Only one direction was captured.',
};

function linesOf(id) {
  const lines = [];
  for (let line = D.connection.indexOf(id); line >= 0 && D.connection[line] === id; line += 1) lines.push(line);
  return lines;
}

// Shows a connection below the table: its counts, findings and timelines.
function showConnection(id) {
  const lines = linesOf(id);
  if (lines.length === 0) return;
  table.opened = id;
  const at = table.order.findIndex((line) => D.connection[line] === id);
  if (at >= 0) byId('scroll').scrollTop = Math.max(0, (at - 3) * ROW_HEIGHT);
  renderRows(true);
  const findings = FINDINGS_OF.get(id) || [];
  const title = element('h3', { tabindex: -1, id: 'connection-title' }, `Connection ${id}`);
  const parts = [
    element(
      'div',
      { class: 'tools' },
      title,
      element('button', { type: 'button', class: 'controls', onclick: closeConnection }, 'Close'),
    ),
    element(
      'p',
      null,
      `${endName(D.from, D.from_qp)(lines[0])} and ${endName(D.to, D.to_qp)(lines[0])}. `,
      PAIRINGS[D.pairing[lines[0]]],
    ),
  ];
  if (findings.length > 0) {
    const links = findings
      .slice(0, NAMED)
      .flatMap((number, index) => [
        index > 0 ? ', ' : '',
        element('a', { href: `#finding-${number + 1}` }, `${number + 1} ${DATA.findings[number].title}`),
      ]);
    const all = element(
      'button',
      {
        type: 'button',
        class: 'plain controls',
        onclick: () => {
          choose(id);
          byId('findings').scrollIntoView();
        },
      },
      `Show only ${findings.length === 1 ? 'this' : 'these'}`,
    );
    parts.push(
      element(
        'p',
        { class: 'links' },
        'Findings: ',
        links,
        findings.length > NAMED ? ` and ${grouped(findings.length - NAMED)} more` : '',
        ' ',
        all,
      ),
    );
  }
  const drawable = lines.some((line) => D.timeline[line] !== '');
  parts.push(
    element(
      'div',
      { class: 'beside' },
      element('div', { class: 'wide' }, countsTable(lines)),
      drawable ? new Timeline(lines, findings).root : null,
    ),
  );
  byId('connection').replaceChildren(...parts);
  byId('connection').scrollIntoView({ block: 'nearest' });
  title.focus({ preventScroll: true });
}

function closeConnection() {
  const line = document.querySelector('#rows tr.opened button');
  table.opened = null;
  byId('connection').replaceChildren();
  history.replaceState(null, '', '#connections');
  renderRows(true);
  (line && line.isConnected ? line : byId('filter')).focus({ preventScroll: true });
}

// The directions of a connection side by side.
function countsTable(lines) {
  const rows = [
    ['Packets', (l) => grouped(D.packets[l])],
    ['Messages', (l) => grouped(D.messages[l])],
    ['Data', (l) => `${bytes(D.bytes[l])} in ${time(D.duration[l])}`],
    ['Rate', (l) => rate(D.rate[l])],
    ['Request packets', (l) => grouped(D.requests[l])],
    ['Repeated', (l) => `${grouped(D.repeats[l])} (${percent(repeatShare(l))})`],
    [
      'Latency p50, p90, p99, longest',
      (l) => [D.p50, D.p90, D.p99, D.max].map((column) => time(column[l])).join(', '),
    ],
    ['ACKs', (l) => grouped(D.acks[l])],
    ['RNR NAKs', (l) => grouped(D.rnr_naks[l])],
    ['Sequence NAKs', (l) => grouped(D.sequence_naks[l])],
    ['Congestion marks', (l) => grouped(D.marks[l])],
    ['Wrong ICRCs', (l) => grouped(D.bad_icrcs[l])],
    ['Most outstanding request packets', (l) => grouped(D.outstanding[l])],
  ];
  const heads = lines.map((line, which) =>
    element(
      'th',
      { scope: 'col' },
      lines.length > 1 ? element('i', { class: `key s${which}`, 'aria-hidden': 'true' }) : null,
      `${endName(D.from, D.from_qp)(line)} → ${endName(D.to, D.to_qp)(line)}`,
    ),
  );
  return element(
    'table',
    { class: 'counts' },
    element('thead', null, element('tr', null, element('td'), heads)),
    element(
      'tbody',
      null,
      rows.map(([name, text]) =>
        element(
          'tr',
          null,
          element('th', { scope: 'row' }, name),
          lines.map((line) => element('td', null, text(line))),
        ),
      ),
    ),
  );
}
