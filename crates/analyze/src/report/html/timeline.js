// Timelines of a connection: throughput, repeated packets and outstanding requests over one axis of time.

const CHARTS = [
  { name: 'Throughput', of: (interval, width) => (interval.bytes * 1e9) / width, text: rate },
  { name: 'Repeated packets', of: (interval) => interval.repeats, text: grouped },
  { name: 'Outstanding request packets', of: (interval) => interval.outstanding, text: grouped },
];
const CHART = { left: 76, right: 12, head: 22, height: 84, gap: 14, axis: 30, top: 20 };
const IDLE = { bytes: 0, packets: 0, repeats: 0, outstanding: 0 };
const ZOOM = 1.5;

// The intervals of a direction: its line in the columns of the data.
function readTimeline(line) {
  const text = DATA.directions.timeline[line];
  const intervals =
    text === ''
      ? []
      : text.split(';').map((part) => {
          if (part === '') return IDLE;
          const [bytes, packets, repeats, outstanding] = part.split(',').map(Number);
          return { bytes, packets, repeats, outstanding };
        });
  const start = DATA.directions.timeline_start[line];
  const width = DATA.directions.timeline_interval[line];
  return { start, width, intervals, end: start + width * intervals.length };
}

// A round number that is not smaller: a step of ticks, or the end of a scale.
const TICKS = [1, 2, 5, 10];
const ENDS = [1, 2, 3, 4, 5, 6, 8, 10];
function roundUp(value, digits) {
  const power = 10 ** Math.floor(Math.log10(value));
  return digits.map((digit) => digit * power).find((round) => round >= value * 0.9999);
}

class Timeline {
  // `lines`: the directions of the connection; `findings`: numbers of its findings, from 0.
  constructor(lines, findings) {
    this.series = lines.map(readTimeline).filter((series) => series.intervals.length > 0);
    this.findings = findings;
    this.full = [Math.min(...this.series.map((s) => s.start)), Math.max(...this.series.map((s) => s.end))];
    // Closer than this there is nothing to see but one interval.
    this.least = Math.min(this.full[1] - this.full[0], 4 * Math.min(...this.series.map((s) => s.width)));
    this.view = [...this.full];
    this.status = element('p', { class: 'note status', role: 'status' });
    this.readout = element('p', { class: 'note readout' });
    this.svg = drawn('svg', {
      class: 'timeline',
      tabindex: 0,
      role: 'group',
      'aria-label': 'Timelines. Keys: plus and minus zoom, arrows move, 0 shows all.',
    });
    const button = (label, action) => element('button', { type: 'button', onclick: action }, label);
    this.root = element(
      'div',
      { class: 'timelines' },
      element(
        'div',
        { class: 'tools controls' },
        button('Zoom in', () => this.zoom(1 / ZOOM)),
        button('Zoom out', () => this.zoom(ZOOM)),
        button('Reset', () => this.show(...this.full)),
        this.status,
      ),
      this.svg,
      this.readout,
      element(
        'p',
        { class: 'note controls' },
        'Drag across the timelines to zoom in; click them to zoom with the wheel ',
        'or with the keys + − ← → 0.',
      ),
    );
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.root);
  }

  // Shows the times from `from` to `to`, as far as there are packets.
  show(from, to) {
    const width = Math.min(Math.max(to - from, this.least), this.full[1] - this.full[0]);
    const start = Math.min(Math.max(from, this.full[0]), this.full[1] - width);
    this.view = [start, start + width];
    this.draw();
  }

  // Changes the length of what is shown; the time at `share` of it stays in its place.
  zoom(factor, share = 0.5) {
    const [from, to] = this.view;
    const width = Math.min(Math.max((to - from) * factor, this.least), this.full[1] - this.full[0]);
    const fixed = from + (to - from) * share;
    this.show(fixed - width * share, fixed + width * (1 - share));
  }

  move(share) {
    const by = (this.view[1] - this.view[0]) * share;
    this.show(this.view[0] + by, this.view[1] + by);
  }

  isWhole() {
    return this.view[0] <= this.full[0] && this.view[1] >= this.full[1];
  }

  x(at) {
    const [from, to] = this.view;
    return CHART.left + ((at - from) / (to - from)) * (this.width - CHART.left - CHART.right);
  }

  // The time at a place of the screen, within the view.
  timeAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    const inside = ((clientX - box.left) * this.width) / box.width - CHART.left;
    const share = Math.min(Math.max(inside / (this.width - CHART.left - CHART.right), 0), 1);
    return this.view[0] + share * (this.view[1] - this.view[0]);
  }

  draw() {
    // On paper there may be no layout yet.
    this.width = Math.max(this.root.clientWidth || 720, 260);
    const height = CHART.top + CHARTS.length * (CHART.head + CHART.height + CHART.gap) + CHART.axis;
    for (const [name, value] of Object.entries({
      viewBox: `0 0 ${this.width} ${height}`,
      width: this.width,
      height,
    })) {
      this.svg.setAttribute(name, value);
    }
    this.bottom = height - CHART.axis - CHART.gap;
    this.svg.replaceChildren(
      ...this.bands(),
      ...CHARTS.flatMap((chart, at) => this.chart(chart, at)),
      ...this.axis(),
    );
    const [from, to] = this.view;
    this.status.textContent = this.isWhole()
      ? `All ${time(to - from)}`
      : `${time(to - from)} of ${time(this.full[1] - this.full[0])}`;
    this.svg.dataset.from = from;
    this.svg.dataset.to = to;
  }

  chart(chart, at) {
    const top = CHART.top + at * (CHART.head + CHART.height + CHART.gap) + CHART.head;
    const floor = top + CHART.height;
    const [from, to] = this.view;
    const values = this.series.map((series) =>
      series.intervals.map((interval) => chart.of(interval, series.width)),
    );
    let most = 0;
    this.series.forEach((series, which) =>
      series.intervals.forEach((_, index) => {
        const start = series.start + index * series.width;
        if (start < to && start + series.width > from) most = Math.max(most, values[which][index]);
      }),
    );
    const limit = most > 0 ? roundUp(most, ENDS) : 1;
    const y = (value) => floor - (value / limit) * CHART.height;
    const parts = [drawn('text', { x: CHART.left, y: top - 8, class: 'strong' }, chart.name)];
    for (const value of most > 0 ? [0, limit / 2, limit] : [0]) {
      parts.push(
        drawn('line', { class: 'grid', x1: CHART.left, x2: this.width - CHART.right, y1: y(value), y2: y(value) }),
      );
      if (!Number.isInteger(value) && chart.text === grouped) continue;
      parts.push(
        drawn(
          'text',
          { class: 'dim', x: CHART.left - 8, y: y(value) + 4, 'text-anchor': 'end' },
          chart.text(value),
        ),
      );
    }
    this.series.forEach((series, which) => {
      const path = this.steps(series, values[which], y);
      if (path === '') return;
      parts.push(drawn('path', { class: `area s${which}`, d: `${path}V${floor}H${this.pathStart}z` }));
      parts.push(drawn('path', { class: `line s${which}`, d: path }));
    });
    return parts;
  }

  // A path of steps through the intervals in view.
  steps(series, values, y) {
    const [from, to] = this.view;
    let path = '';
    values.forEach((value, index) => {
      const start = Math.max(series.start + index * series.width, from);
      const end = Math.min(series.start + (index + 1) * series.width, to);
      if (end <= start) return;
      if (path === '') {
        this.pathStart = this.x(start).toFixed(1);
        path = `M${this.pathStart} ${y(0).toFixed(1)}`;
      }
      path += `V${y(value).toFixed(1)}H${this.x(end).toFixed(1)}`;
    });
    return path;
  }

  axis() {
    const [from, to] = this.view;
    const step = roundUp(((to - from) * 100) / (this.width - CHART.left - CHART.right), TICKS);
    const [, unit] = scaled(Math.max(to - from, 1), 1000, ['ns', 'µs', 'ms', 's']);
    const factor = { ns: 1, µs: 1e3, ms: 1e6, s: 1e9 }[unit];
    const places = Math.max(0, Math.ceil(-Math.log10(step / factor) - 1e-9));
    const parts = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = this.x(at);
      parts.push(drawn('line', { class: 'grid', x1: x, x2: x, y1: this.bottom, y2: this.bottom + 5 }));
      const anchor = x > this.width - 30 ? 'end' : 'middle';
      const label = `${(at / factor).toFixed(Math.min(places, 3))} ${unit}`;
      parts.push(drawn('text', { class: 'dim', x, y: this.bottom + 19, 'text-anchor': anchor }, label));
    }
    return parts;
  }

  // The times of the findings, each with its number, which leads to it.
  bands() {
    let last = -Infinity;
    const [from, to] = this.view;
    const inView = this.findings.filter((at) => DATA.findings[at].to >= from && DATA.findings[at].from <= to);
    // Numbers that would lie on each other move to the right, so the earliest comes first.
    inView.sort((one, other) => DATA.findings[one].from - DATA.findings[other].from);
    return inView.flatMap((at) => {
      const finding = DATA.findings[at];
      const left = Math.max(this.x(finding.from), CHART.left);
      const right = Math.min(this.x(finding.to), this.width - CHART.right);
      const label = Math.max(Math.min(left, this.width - CHART.right - 10), last + 24);
      last = label;
      const title = drawn('title', null, `Finding ${at + 1}: ${finding.title}`);
      const parts = [
        drawn('rect', { class: 'strip', x: left, y: CHART.top - 4, width: Math.max(right - left, 1.5), height: 4 }),
        drawn('rect', {
          class: 'band',
          x: left,
          y: CHART.top,
          width: Math.max(right - left, 1.5),
          height: this.bottom - CHART.top,
        }),
      ];
      if (label < this.width) {
        parts.push(
          drawn(
            'a',
            { href: `#finding-${at + 1}`, 'aria-label': `Finding ${at + 1}: ${finding.title}` },
            title,
            drawn('text', { class: 'mark', x: label, y: 13 }, `${at + 1}`),
          ),
        );
      }
      return parts;
    });
  }

  listen() {
    let began = null;
    let selection = null;
    const cancel = () => {
      if (selection) selection.remove();
      [began, selection] = [null, null];
    };
    this.svg.addEventListener('pointerdown', (event) => {
      if (event.button !== 0 || event.target.closest('a')) return;
      began = event.clientX;
      selection = drawn('rect', { class: 'selection', y: CHART.top, height: this.bottom - CHART.top, width: 0 });
      this.svg.append(selection);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener('pointermove', (event) => {
      this.tell(this.timeAt(event.clientX));
      if (began === null) return;
      const [left, right] = [began, event.clientX].map((x) => this.x(this.timeAt(x))).sort((a, b) => a - b);
      selection.setAttribute('x', left);
      selection.setAttribute('width', right - left);
    });
    this.svg.addEventListener('pointerup', (event) => {
      if (began === null) return;
      const [from, to] = [began, event.clientX].map((x) => this.timeAt(x)).sort((a, b) => a - b);
      const dragged = Math.abs(event.clientX - began) > 6;
      cancel();
      this.svg.focus({ preventScroll: true });
      if (dragged) this.show(from, to);
    });
    this.svg.addEventListener('pointercancel', cancel);
    this.svg.addEventListener('pointerleave', () => {
      this.readout.textContent = '';
    });
    this.svg.addEventListener('dblclick', () => this.show(...this.full));
    this.svg.addEventListener(
      'wheel',
      (event) => {
        // The page scrolls until the timelines were clicked, and when there is nothing to zoom out of.
        if (document.activeElement !== this.svg && !event.ctrlKey) return;
        if (event.deltaY > 0 && this.isWhole()) return;
        event.preventDefault();
        const share = (this.timeAt(event.clientX) - this.view[0]) / (this.view[1] - this.view[0]);
        this.zoom(event.deltaY < 0 ? 1 / ZOOM : ZOOM, share);
      },
      { passive: false },
    );
    this.svg.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const actions = {
        '+': () => this.zoom(1 / ZOOM),
        '=': () => this.zoom(1 / ZOOM),
        '-': () => this.zoom(ZOOM),
        ArrowLeft: () => this.move(-0.2),
        ArrowRight: () => this.move(0.2),
        0: () => this.show(...this.full),
        Home: () => this.show(...this.full),
      };
      if (!actions[event.key] || event.target !== this.svg) return;
      event.preventDefault();
      actions[event.key]();
    });
  }

  // Writes the values at a time below the timelines.
  tell(at) {
    const values = this.series.map((series) => {
      const interval = series.intervals[Math.floor((at - series.start) / series.width)];
      if (!interval) return null;
      return CHARTS.map(
        (chart) => `${chart.name.toLowerCase()} ${chart.text(chart.of(interval, series.width))}`,
      ).join(', ');
    });
    const several = this.series.length > 1;
    const told = values
      .map((value, which) => value && (several ? `${'→←'[which]} ${value}` : value))
      .filter(Boolean);
    this.readout.textContent = `${seconds(at)}: ${told.join('; ') || 'no packets'}`;
  }
}
