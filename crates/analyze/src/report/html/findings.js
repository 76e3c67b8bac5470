// The list of findings: chips choose kinds, each finding opens to its evidence, ladder and advice.

const SHOWN_AT_FIRST = 20;
const PRINTED = 40;
// Connections that a finding names; the table has all.
const NAMED = 12;

const choice = { kinds: new Set(), connection: null, shown: SHOWN_AT_FIRST };

function cost(finding) {
  if (finding.cost_ns > 0) return time(finding.cost_ns);
  return finding.cost_packets > 0 ? counted(finding.cost_packets, 'packet') : 'none';
}

function chosenFindings() {
  const all = choice.connection === null ? DATA.findings.keys() : FINDINGS_OF.get(choice.connection) || [];
  return [...all].filter((at) => choice.kinds.size === 0 || choice.kinds.has(DATA.findings[at].kind));
}

function renderFindings() {
  const chosen = chosenFindings();
  const all = DATA.findings.length;
  byId('findings-lead').textContent =
    all === 0
      ? 'Nothing found.'
      : `${counted(all, 'finding')}, the gravest first, by the time in which requests waited.`;
  byId('finding-list').replaceChildren(...chosen.slice(0, choice.shown).map(findingItem));
  const left = chosen.length - Math.min(choice.shown, chosen.length);
  byId('findings-more').textContent = left > 0 ? `${counted(left, 'more finding')} not shown.` : '';
  byId('more').hidden = left === 0;
  byId('more').textContent = `Show ${grouped(Math.min(left, SHOWN_AT_FIRST))} more`;
  renderKinds();
  renderChosen(chosen.length);
}

function renderKinds() {
  const counts = new Map();
  for (const { kind, title } of DATA.findings) {
    const known = counts.get(kind);
    if (known) known.count += 1;
    else counts.set(kind, { title, count: 1 });
  }
  const chips =
    counts.size < 2
      ? []
      : [...counts].map(([kind, { title, count }]) =>
          element(
            'button',
            {
              type: 'button',
              class: 'chip',
              'data-kind': kind,
              'aria-pressed': String(choice.kinds.has(kind)),
              onclick: () => {
                if (!choice.kinds.delete(kind)) choice.kinds.add(kind);
                choice.shown = SHOWN_AT_FIRST;
                renderFindings();
                document.querySelector(`.chip[data-kind="${kind}"]`).focus();
              },
            },
            title,
            ' ',
            element('b', null, grouped(count)),
          ),
        );
  byId('kinds').replaceChildren(...chips);
}

function renderChosen(count) {
  byId('chosen').hidden = choice.connection === null;
  if (choice.connection === null) return;
  const all = element(
    'button',
    {
      type: 'button',
      class: 'chip',
      'aria-pressed': 'true',
      onclick: () => {
        choose(null);
        byId('findings-title').focus();
      },
    },
    'Show those of all connections',
  );
  const link = element('a', { href: `#connection-${choice.connection}` }, `connection ${choice.connection}`);
  byId('chosen').replaceChildren(element('span', null, `${counted(count, 'finding')} of `, link), all);
}

// Shows the findings of a connection only; those of all with null.
function choose(connection) {
  Object.assign(choice, { connection, shown: SHOWN_AT_FIRST });
  choice.kinds.clear();
  renderFindings();
}

// Shows and opens a finding, whatever is chosen.
function showFinding(at) {
  if (!DATA.findings[at]) return;
  if (!chosenFindings().slice(0, choice.shown).includes(at)) {
    choose(null);
    choice.shown = Math.max(choice.shown, at + 1);
    renderFindings();
  }
  const item = byId(`finding-${at + 1}`);
  item.open = true;
  fillFinding(item);
  item.scrollIntoView({ block: 'start' });
  item.querySelector('summary').focus({ preventScroll: true });
}

function findingItem(at) {
  const finding = DATA.findings[at];
  const others = finding.connections.length - 1;
  const item = element(
    'details',
    { class: 'finding', id: `finding-${at + 1}`, 'data-at': at },
    element(
      'summary',
      null,
      element('span', { class: 'number' }, String(at + 1)),
      element('span', { class: 'title' }, capital(finding.title)),
      element(
        'span',
        { class: 'peers' },
        `${peerName(finding.requester)} → ${peerName(finding.responder)}`,
        others > 0 ? ` and ${counted(others, 'more connection')}` : '',
      ),
      element('span', { class: 'cost' }, element('small', null, 'cost '), cost(finding)),
      element(
        'span',
        { class: 'confidence' },
        element('small', null, 'confidence '),
        percent(finding.confidence),
        bar(finding.confidence),
      ),
    ),
  );
  item.addEventListener('toggle', () => {
    if (item.open) fillFinding(item);
  });
  return item;
}

function bar(share) {
  const inner = element('i');
  inner.style.width = `${share * 100}%`;
  return element('span', { class: 'bar', 'aria-hidden': 'true' }, inner);
}

// Fills a finding when it is first opened: thousands of closed ones stay small.
function fillFinding(item) {
  if (item.childElementCount > 1) return;
  const finding = DATA.findings[Number(item.dataset.at)];
  const words = element(
    'div',
    { class: 'words' },
    element('p', { class: 'text' }, finding.text),
    facts(finding),
    ...frames(finding),
    advice(finding),
  );
  const body = element('div', { class: 'body' }, words);
  item.append(body);
  if (finding.ladder.length > 0) body.append(ladderFigure(finding.ladder, item));
}

function facts(finding) {
  const rows = [
    ['When', `${seconds(finding.from)} to ${seconds(finding.to)}`],
    ['How often', grouped(finding.count)],
    ['Requests waited', finding.cost_ns > 0 ? time(finding.cost_ns) : ''],
    [
      'Sent in vain',
      finding.cost_packets > 0 ? `${counted(finding.cost_packets, 'packet')}, ${bytes(finding.cost_bytes)}` : '',
    ],
    ['Connection', connectionLinks(finding)],
  ];
  return element(
    'dl',
    null,
    rows
      .filter(([, value]) => value !== '')
      .map(([name, value]) => [element('dt', null, name), element('dd', null, value)]),
  );
}

function connectionLinks(finding) {
  const named = finding.connections
    .slice(0, NAMED)
    .flatMap((id, at) => [at > 0 ? ', ' : '', element('a', { href: `#connection-${id}` }, String(id))]);
  const left = finding.connections.length - NAMED;
  if (left > 0) {
    named.push(
      ' ',
      element(
        'button',
        {
          type: 'button',
          class: 'plain',
          onclick: () => filterConnections(finding.kind),
        },
        `and ${grouped(left)} more, in the table`,
      ),
    );
  }
  return named;
}

// Display filters of Wireshark, for each file one.
function frames(finding) {
  const files = new Map();
  finding.frames.forEach((number, at) => {
    const file = finding.frame_files[at];
    if (!files.has(file)) files.set(file, []);
    files.get(file).push(number);
  });
  return [...files].map(([file, numbers]) => {
    const filter = `frame.number in {${ranges(numbers).join(', ')}}`;
    const name = DATA.files.length > 1 ? element('small', null, `in ${DATA.files[file]}`) : null;
    return element(
      'p',
      { class: 'frames' },
      element('small', null, 'Wireshark filter'),
      name,
      element('code', null, filter),
      copyButton(filter),
    );
  });
}

// 1, 2, 3, 7 as 1..3, 7.
function ranges(numbers) {
  const runs = [];
  for (const number of [...new Set(numbers)].sort((a, b) => a - b)) {
    const last = runs[runs.length - 1];
    if (last && last[1] + 1 === number) last[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}..${last}`));
}

function advice(finding) {
  const layers = new Map();
  for (const at of finding.advice) {
    const entry = DATA.advice[at];
    if (!layers.has(entry.layer)) layers.set(entry.layer, []);
    layers.get(entry.layer).push(entry);
  }
  if (layers.size === 0) return null;
  const rows = [...layers].flatMap(([layer, entries]) =>
    entries.map((entry, at) =>
      element(
        'tr',
        null,
        at === 0 ? element('th', { scope: 'rowgroup', rowspan: entries.length }, layer) : null,
        element('td', null, element('code', null, entry.written)),
        element('td', null, entry.purpose, entry.remark ? element('small', null, entry.remark) : null),
      ),
    ),
  );
  return element(
    'table',
    { class: 'advice' },
    element('caption', null, 'What to change'),
    element('tbody', null, rows),
  );
}

// Ladders follow the width of their place.
const ladderWidths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const place = target.querySelector('.place');
    if (!place || Math.abs(contentRect.width - Number(place.dataset.width)) < 4 || contentRect.width === 0)
      continue;
    place.dataset.width = contentRect.width;
    place.replaceChildren(drawLadder(DATA.findings[Number(target.dataset.at)].ladder, contentRect.width));
  }
});

function ladderFigure(steps, item) {
  const place = element('div', { class: 'place' });
  const table = element('details', { class: 'packets' }, element('summary', null, 'The packets as a table'));
  table.addEventListener('toggle', () => {
    if (table.childElementCount === 1) table.append(packetTable(steps));
  });
  const figure = element(
    'figure',
    { 'data-at': item.dataset.at },
    element('figcaption', null, 'Packets around the most expensive occurrence'),
    place,
    table,
  );
  requestAnimationFrame(() => ladderWidths.observe(figure));
  place.append(drawLadder(steps, LADDER.widest));
  return figure;
}

function packetTable(steps) {
  const heads = ['Time, ms', 'Frame', 'Sender', 'Packet', 'PSN', 'Note'].map((head) =>
    element('th', { scope: 'col' }, head),
  );
  const rows = steps.map(([at, frame, fromRequester, what, psn, note, mark]) =>
    element(
      'tr',
      { class: mark },
      [
        (at / 1e6).toFixed(6),
        frame,
        fromRequester ? 'requester' : 'responder',
        what,
        psn,
        [note, mark === 'lost' || mark === 'unanswered' ? mark : ''].filter(Boolean).join(', '),
      ].map((cell) => element('td', null, String(cell))),
    ),
  );
  return element(
    'div',
    { class: 'wide' },
    element('table', null, element('thead', null, element('tr', null, heads)), element('tbody', null, rows)),
  );
}
