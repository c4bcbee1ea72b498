// A flow on the page of one of its jobs: a picture from left to right, and lists of both directions.

import { html, useEffect, useRef } from "./ui.js";
import { STATES } from "./jobs.js";
import { Tag, jobsLink, link, queueOf, shortId } from "./components.js";
import { number, t } from "./text.js";

const WIDTH = 160, HEIGHT = 56, BETWEEN = 36, GAP = 12;

/** More jobs than this in one column are shown together if they have the same task and the same state. */
const MOST_IN_COLUMN = 6;

/**
 * The boxes of the picture by column, and the edges between them. A column is the longest way to the job of the page, so
 * that each edge goes to the right; the jobs that it waits for have columns below 0.
 */
function drawn(flow) {
  const boxes = new Map(), edges = [];
  const visit = (node, side, step, column) => {
    const known = boxes.get(node.id);
    if (!known || known.column * step < column * step) boxes.set(node.id, { id: node.id, column, nodes: [node] });
    const near = node[side];
    const hidden = (side === "predecessors" ? node.total : node.awaited_by) - near.length;
    const join = (one) => edges.push(step < 0 ? [one, node.id, step] : [node.id, one, step]);
    for (const one of near) { join(one.id); visit(one, side, step, column + step); }
    if (hidden > 0 && (near.length || node === flow)) {
      const id = `${node.id} ${side}`;
      join(id); boxes.set(id, { id, column: column + step, nodes: [], hidden });
    }
  };
  visit(flow, "predecessors", -1, 0);
  visit(flow, "dependents", 1, 0);
  moveApart(flow, boxes, edges);
  const columns = new Map();
  for (const box of boxes.values()) columns.set(box.column, [...(columns.get(box.column) ?? []), box]);
  const shownAs = new Map();
  const ordered = [...columns].sort(([one], [other]) => one - other).map(([, column]) => together(column, shownAs));
  const seen = new Map();
  for (const [from, to] of edges) {
    const ends = [shownAs.get(from) ?? from, shownAs.get(to) ?? to];
    seen.set(ends.join(" > "), ends);
  }
  return [ordered, [...seen.values()]];
}

/**
 * Moves the boxes of edges that do not go to the right away from the job of the page. Where a job appears again, the tree
 * may be cut, so that the way goes on only from where it appeared first. Ids that were used again can make a circle.
 */
function moveApart(flow, boxes, edges) {
  for (let rounds = boxes.size, moved = true; moved && rounds > 0; rounds--) {
    moved = false;
    for (const [from, to, step] of edges) {
      const left = boxes.get(from), right = boxes.get(to), outer = step < 0 ? left : right;
      if (left.column < right.column || outer.id === flow.id) continue;
      outer.column = (step < 0 ? right : left).column + step;
      moved = true;
    }
  }
}

/** One box for all jobs of a task in one state, where a column would be too long otherwise. */
function together(column, shownAs) {
  if (column.length <= MOST_IN_COLUMN) return column;
  const found = new Map();
  for (const box of column) {
    const [node] = box.nodes, kind = node ? `${node.task} ${node.status} ${queueOf(node.id)}` : box.id;
    const first = found.get(kind);
    if (!first) { found.set(kind, box); continue; }
    first.nodes.push(node);
    shownAs.set(box.id, first.id);
  }
  return [...found.values()];
}

function Box({ box, root }) {
  const [node] = box.nodes, place = { left: `${box.x}px`, top: `${box.y}px`, width: `${WIDTH}px`, height: `${HEIGHT}px` };
  if (!node) return html`<div class="box quiet" style=${place}>${t("and-more", { n: number(box.hidden) })}</div>`;
  const name = node.task || shortId(node.id), many = box.nodes.length;
  return html`<div class=${`box ${node.id === root ? "own" : ""}`} style=${place} title=${many > 1 ? "" : node.id}>
    <div class="name">${many > 1 ? jobsLink(queueOf(node.id), { task: node.task }, name) : link("job", node.id, name)}${many > 1 && ` × ${number(many)}`}</div>
    <${Tag} state=${STATES[node.status]}>${t(`status.${node.status}`)}<//></div>`;
}

function Picture({ flow }) {
  const frame = useRef(null);
  useEffect(() => {  // on a narrow screen, begin with the job of the page
    const own = frame.current.querySelector(".own");
    frame.current.scrollLeft = own.offsetLeft - (frame.current.clientWidth - WIDTH) / 2;
  }, [flow.id]);
  const [columns, edges] = drawn(flow), places = new Map();
  const height = Math.max(...columns.map((column) => column.length)) * (HEIGHT + GAP) - GAP;
  columns.forEach((column, at) => column.forEach((box, row) => {
    const own = column.length * (HEIGHT + GAP) - GAP;
    Object.assign(box, { x: at * (WIDTH + BETWEEN), y: (height - own) / 2 + row * (HEIGHT + GAP) });
    places.set(box.id, box);
  }));
  const width = columns.length * (WIDTH + BETWEEN) - BETWEEN;
  const path = ([from, to]) => {
    const [a, b] = [places.get(from), places.get(to)], x = a.x + WIDTH, y = a.y + HEIGHT / 2, end = b.y + HEIGHT / 2, half = (b.x - x) / 2;
    return `M${x} ${y}C${x + half} ${y} ${b.x - half} ${end} ${b.x} ${end}`;
  };
  return html`<div class="scroll" ref=${frame} tabindex="0" role="group" aria-label=${t("flow.picture")}><div class="graph" style=${{ width: `${width}px`, height: `${height}px` }}>
    <svg width=${width} height=${height} aria-hidden="true">${edges.map((edge) => html`<path d=${path(edge)} />`)}</svg>
    ${columns.flat().map((box) => html`<${Box} key=${box.id} box=${box} root=${flow.id} />`)}</div></div>`;
}

/** A job of a flow, and below it those of one side: the jobs that it waits or waited for, or those that wait for it. */
function Branch({ node, side }) {
  const near = node[side], hidden = (side === "dependents" ? node.awaited_by : node.total) - near.length;
  return html`<li><${Tag} state=${STATES[node.status]}>${t(`status.${node.status}`)}<//>
    ${" "}<span class="mono">${link("job", node.id, shortId(node.id))}</span> ${jobsLink(queueOf(node.id), { task: node.task })}
    ${node.total > 0 && html` <span class="quiet">${t("flow.ended", { ended: number(node.total - node.left), total: number(node.total) })}${node.dead > 0 && html` · ${t("flow.dead", { n: number(node.dead) })}`}</span>`}
    ${near.length > 0 && html`<${Branches} node=${node} side=${side} hidden=${hidden} />`}</li>`;
}

const Branches = ({ node, side, hidden }) => html`<ul class="flow">${node[side].map((one) => html`<${Branch} key=${one.id} node=${one} side=${side} />`)}
  ${hidden > 0 && html`<li class="quiet">${t("and-more", { n: number(hidden) })}</li>`}</ul>`;

/** Both directions of a flow: what has to end before the job, and what begins after it. */
export function Flow({ flow }) {
  const ended = number(flow.total - flow.left), total = number(flow.total);
  return html`<div class="card"><h2>${t("flow")}</h2>
    <${Picture} flow=${flow} />
    ${flow.total > 0 && html`<h3>${t(flow.left ? "flow.waits-for" : "flow.waited-for")} <span class="quiet">${t("flow.ended", { ended, total })}${flow.dead > 0 && html` · ${t("flow.dead", { n: number(flow.dead) })}`}</span></h3>
      <${Branches} node=${flow} side="predecessors" hidden=${flow.total - flow.predecessors.length} />`}
    ${flow.awaited_by > 0 && html`<h3>${t("flow.awaited-by")} <span class="quiet">${number(flow.awaited_by)}</span></h3>
      <${Branches} node=${flow} side="dependents" hidden=${flow.awaited_by - flow.dependents.length} />`}</div>`;
}
