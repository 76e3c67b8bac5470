// Packet ladders, as in the papers: two vertical lines, time from top to bottom, an arrow for each packet.

const LADDER = {
  top: 46,
  bottom: 30,
  slope: 16, // vertical extent of an arrow
  near: 34, // distances between two packets: the least, at which labels are readable, and the greatest
  far: 76,
  left: 74, // room for the times
  right: 34,
  widest: 560,
};
// Gaps longer than this break both lines, ns.
const SILENCE = 5e6;

// The y at which each packet leaves, and the gap before it if that breaks the lines.
function ladderPlaces(steps) {
  let y = LADDER.top + 8;
  return steps.map(([at], index) => {
    if (index === 0) return { y, silence: null };
    const gap = at - steps[index - 1][0];
    if (gap >= SILENCE) {
      y += LADDER.far;
      return { y, silence: gap };
    }
    // Each power of ten above a microsecond takes some more room.
    y += Math.min(LADDER.far, LADDER.near + 7 * Math.max(0, Math.log10(Math.max(gap, 1) / 1000)));
    return { y, silence: null };
  });
}

// Width of a text of the ladder's size, before it is in the page.
const measureText = (() => {
  let context = null;
  return (text) => {
    if (!context) {
      context = document.createElement('canvas').getContext('2d');
      context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    }
    return context.measureText(text).width;
  };
})();

function drawLadder(steps, width) {
  width = Math.min(width, LADDER.widest);
  const requester = LADDER.left;
  const responder = width - LADDER.right;
  const places = ladderPlaces(steps);
  const floor = places[places.length - 1].y + LADDER.slope + 14;
  const height = floor + LADDER.bottom;
  const svg = drawn('svg', {
    class: 'ladder',
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: 'img',
    'aria-label': `${counted(steps.length, 'packet')} between requester and responder`,
  });
  svg.append(
    drawn('text', { x: requester - 40, y: 20, 'text-anchor': 'end', class: 'dim' }, 'ms'),
    drawn('text', { x: requester, y: 20, 'text-anchor': 'middle', class: 'strong' }, 'requester'),
    drawn(
      'text',
      { x: Math.min(responder, width - 32), y: 20, 'text-anchor': 'middle', class: 'strong' },
      'responder',
    ),
  );
  for (const x of [requester, responder]) {
    svg.append(drawn('line', { x1: x, x2: x, y1: 28, y2: floor, class: 'life' }));
  }
  steps.forEach((step, index) => {
    const { y, silence } = places[index];
    if (silence !== null)
      svg.append(ladderBreak(requester, responder, y - LADDER.far / 2 + LADDER.slope / 2, silence));
    svg.append(ladderArrow(step, y, requester, responder));
  });
  const note = 'time runs down, not to scale';
  svg.append(
    drawn('text', { x: (requester + responder) / 2, y: floor + 20, 'text-anchor': 'middle', class: 'dim' }, note),
  );
  return svg;
}

function ladderArrow([at, frame, fromRequester, what, psn, note, mark], y, requester, responder) {
  const [from, to] = fromRequester ? [requester, responder] : [responder, requester];
  const way = Math.sign(to - from);
  // The arrow of a packet that did not arrive, or may not have arrived, ends before the other line.
  const share = mark === 'lost' ? 0.88 : mark === 'unanswered' ? 0.94 : 1;
  const end = from + (to - from) * share;
  const low = y + LADDER.slope * share;
  const group = drawn('g', { class: `step ${mark}` });
  group.append(drawn('title', null, `frame ${frame}: ${what}, PSN ${psn}${note ? `, ${note}` : ''}`));
  group.append(drawn('path', { class: 'arrow', d: `M${from} ${y}L${end} ${low}` }));
  if (mark === 'lost') {
    group.append(drawn('path', { class: 'cross', d: `M${end - 5} ${low - 5}l10 10m0 -10l-10 10` }));
  } else {
    const sink = (LADDER.slope / Math.abs(to - from)) * 9;
    group.append(drawn('path', { class: 'head', d: `M${end} ${low}l${-9 * way} ${-3.8 - sink}v7.6z` }));
  }
  const leftEnd = fromRequester ? y : low;
  const milliseconds = (at / 1e6).toFixed(3);
  group.append(
    drawn('text', { class: 'when', x: requester - 10, y: leftEnd + 4, 'text-anchor': 'end' }, milliseconds),
  );
  const middle = (from + to) / 2;
  const tilt = (way * Math.atan2(LADDER.slope, Math.abs(to - from)) * 180) / Math.PI;
  const label = ladderLabel(what, psn, note, mark, responder - requester - 24);
  group.append(
    drawn(
      'text',
      {
        class: 'name',
        'text-anchor': 'middle',
        transform: `translate(${middle} ${y + LADDER.slope / 2 - 5}) rotate(${tilt.toFixed(2)})`,
      },
      label,
    ),
  );
  return group;
}

// The most of a packet's description for which there is room; the whole is in the arrow's title and in the list.
function ladderLabel(what, psn, note, mark, room) {
  const short = { lost: 'lost', unanswered: 'unanswered', repeat: 'again' }[mark] || note;
  const fate = mark === 'repeat' && note !== '' ? note : short;
  const name = what.replace('NAK (PSN sequence error)', 'sequence NAK');
  const labels = [
    [name, `PSN ${psn}`, fate],
    [name, `PSN ${psn}`, short],
    [name, psn, short],
    [name, short],
    [name],
  ].map((parts) => parts.filter((part) => part !== '').join(', '));
  return labels.find((label) => measureText(label) <= room) || labels[labels.length - 1];
}

function ladderBreak(requester, responder, y, silence) {
  const group = drawn('g', { class: 'break' });
  for (const x of [requester, responder]) {
    group.append(
      drawn('path', { class: 'gap', d: `M${x - 10} ${y - 4}h20v8h-20z` }),
      drawn('path', { class: 'life', d: `M${x - 8} ${y - 1}l16 -6M${x - 8} ${y + 7}l16 -6` }),
    );
  }
  const middle = (requester + responder) / 2;
  group.append(
    drawn('text', { class: 'dim', x: middle, y: y + 4, 'text-anchor': 'middle' }, `${time(silence)} of silence`),
  );
  return group;
}
