// Starts the page: its summary, navigation by the part of the address after #, and paper.

function summary() {
  const { capture, files, start_ms: start } = DATA;
  byId('files').textContent = files.join(', ');
  document.title = `Weir: ${files.join(', ')}`;
  const connections = D.connection.length > 0 ? D.connection[D.connection.length - 1] : 0;
  const rows = [
    ['Frames', grouped(capture.frames)],
    ['RDMA packets', grouped(capture.packets)],
    ['Connections', element('a', { href: '#connections' }, grouped(connections))],
    ['Findings', element('a', { href: '#findings' }, grouped(DATA.findings.length))],
    ['Duration', time(capture.duration_ns)],
    ['On the wire', bytes(capture.bytes)],
    ['First frame', start > 0 ? new Date(start).toISOString().replace('T', ' ').replace('Z', ' UTC') : '–'],
  ];
  const rare = [
    ['UC, UD, management', capture.unreliable],
    ['Congestion notifications', capture.cnps],
    ['Not parsed', capture.unparsed],
    ['Sent again over links', capture.copies],
  ];
  for (const [name, count] of rare) if (count > 0) rows.push([name, grouped(count)]);
  byId('facts').append(
    ...rows.map(([name, value]) => element('div', null, element('dt', null, name), element('dd', null, value))),
  );
}

// Leads to a finding or a connection.
function navigate() {
  const [, kind, number] = /^#(finding|connection)-(\d+)$/.exec(location.hash) || [];
  if (kind === 'finding') showFinding(Number(number) - 1);
  if (kind === 'connection') showConnection(Number(number));
}

function follow(event) {
  const link = event.target.closest?.('a[href^="#"]');
  // With a key held, the browser opens the place in another tab.
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  lead(link.getAttribute('href'));
}

// Up and down in the table, where Tab would go through the links of each line.
function walk(event) {
  const row = event.target.closest('#rows tr[data-at]');
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!row || !step) return;
  event.preventDefault();
  const at = Math.min(Math.max(Number(row.dataset.at) + step, 0), table.order.length - 1);
  const scroll = byId('scroll');
  const room = scroll.clientHeight - 3 * ROW_HEIGHT;
  scroll.scrollTop = Math.min(Math.max(scroll.scrollTop, at * ROW_HEIGHT - room), at * ROW_HEIGHT);
  renderRows(false);
  byId('rows').querySelector(`tr[data-at="${at}"] button`)?.focus({ preventScroll: true });
}

// Paper gets all findings open, up to a number of them, and the first lines of the table.
const paper = { opened: [], shown: 0 };

function beforePrint() {
  paper.shown = choice.shown;
  if (choice.shown < PRINTED) {
    choice.shown = PRINTED;
    renderKeepingOpen();
  }
  for (const item of document.querySelectorAll('.finding:not([open])')) {
    fillFinding(item);
    item.open = true;
    paper.opened.push(item.id);
  }
  const end = Math.min(table.order.length, PRINTED_ROWS);
  placeRows(0, end);
  const left = table.order.length - end;
  byId('table-note').textContent =
    left > 0 ? `${counted(left, 'more line')} not printed: filter or sort first.` : '';
}

function afterPrint() {
  for (const id of paper.opened) if (byId(id)) byId(id).open = false;
  paper.opened = [];
  choice.shown = paper.shown;
  renderKeepingOpen();
  byId('table-note').textContent = '';
  renderRows(true);
}

function renderKeepingOpen() {
  const open = [...document.querySelectorAll('.finding[open]')].map((item) => item.id);
  renderFindings();
  for (const id of open) {
    const item = byId(id);
    if (item) {
      fillFinding(item);
      item.open = true;
    }
  }
}

summary();
renderFindings();
arrange();
byId('more').addEventListener('click', () => {
  choice.shown += SHOWN_AT_FIRST;
  renderKeepingOpen();
});
byId('filter').addEventListener('input', (event) => {
  table.filter = event.target.value;
  arrange();
});
byId('scroll').addEventListener('scroll', () => renderRows(false), { passive: true });
byId('rows').addEventListener('keydown', walk);
new ResizeObserver(() => renderRows(true)).observe(byId('scroll'));
window.addEventListener('hashchange', navigate);
document.addEventListener('click', follow);
window.addEventListener('beforeprint', beforePrint);
window.addEventListener('afterprint', afterPrint);
if (location.hash) navigate();
else if (DATA.findings.length > 0) {
  const first = byId('finding-1');
  fillFinding(first);
  first.open = true;
}
