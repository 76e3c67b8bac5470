// The view of one connection, below the table: its counts, findings and timelines.

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

// Shows a connection, and its lines in the table.
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
