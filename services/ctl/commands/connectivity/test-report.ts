import type { Counter } from '@podwire/proto/podwire/dataplane/v1/probe';
import { formatCount } from '@podwire/shared/words/format-count';

import { DONE, PROBLEM_FOUND, sentence, type Report, type Section } from '../../output/report.js';
import { checkName, errorText, groupedBy, isPassed, type Check, type CheckResult, type TestedNode } from './checks.js';
import type { BreakingPoint } from './diagnosis.js';

/** The place where a broken path ends. */
export interface Break {
  readonly point: BreakingPoint;
  readonly counters: readonly (Counter & { readonly node: string })[];
}

export interface Outcome {
  readonly nodes: readonly TestedNode[];
  readonly results: readonly CheckResult[];
  readonly breaks: ReadonlyMap<Check, Break>;
  /** Untested paths, with the reasons. */
  readonly skipped: readonly { readonly name: string; readonly reason: string }[];
}

export function reportOf({ nodes, results, breaks, skipped }: Outcome): Report {
  const faulty = nodes.filter(({ fault }) => fault !== '');
  const conditions = nodes.flatMap(({ name, conditions: own }) => own.map((each) => `condition of ${name}: ${each}`));
  const broken = results.flatMap((each) => {
    const place = breaks.get(each.check);
    return place ? { ...each, ...place } : [];
  });
  const counts = `${results.length - broken.length} of ${formatCount(results.length, 'path')} passed`;
  const isDone = broken.length === 0 && faulty.length === 0;
  return {
    sections: [
      matrix(results),
      ...faulty.map(({ name, fault }) => sentence(`${name}: ${fault}`)),
      ...groupedBy(broken, ({ point }) => placeOf(point)).map(placeSection),
      ...(broken.length > 0 ? conditions : []).map(sentence),
      ...skipped.map(({ name, reason }) => sentence(`skipped: ${name}: ${reason}`)),
      sentence(
        `${counts} between ${formatCount(nodes.length, 'node')}, ${broken.length} broken, ${skipped.length} skipped`,
      ),
    ],
    data: () => ({
      passed: isDone,
      nodes: nodes.map(({ name, fault }) => ({ name, fault })),
      checks: results.map((each) => valueOf(each, breaks.get(each.check))),
      skipped: skipped.map((each) => ({ ...each })),
    }),
    exitCode: isDone ? DONE : PROBLEM_FOUND,
  };
}

function placeOf({ place, node, detail }: BreakingPoint): string {
  return `${place} of ${node}: ${detail}`;
}

/** A row for each kind of check and family. */
function matrix(results: readonly CheckResult[]): Section {
  const groups = groupedBy(results, ({ check }) => `${check.kind} IPv${check.family}`);
  const rows = groups.map((group) => {
    const [{ check }] = group;
    const passed = group.filter(isPassed);
    const slowestMs = Math.max(0, ...passed.map(({ result }) => result.timeUs)) / 1000;
    const state = passed.length === group.length ? 'passed' : 'broken';
    return [check.kind, `IPv${check.family}`, state, `${passed.length}/${group.length}`, slowestMs.toFixed(1)];
  });
  return {
    kind: 'table',
    columns: ['PATHS', 'FAMILY', 'RESULT', { right: 'PASSED' }, { right: 'SLOWEST MS' }],
    rows,
    none: 'paths: none',
  };
}

/** Most broken paths that are listed of one place. */
const MAX_LISTED = 12;

/** The broken paths that end at one place. */
function placeSection(group: readonly [CheckResult & Break, ...(CheckResult & Break)[]]): Section {
  const [{ point, counters }] = group;
  const paths = group.slice(0, MAX_LISTED).map((each) => {
    const { kind, family, target } = each.check;
    return `  ${kind} IPv${family}: ${checkName(each.check)} (${target.address}): ${errorText(each)}`;
  });
  const further = group.length - paths.length;
  const lines = [
    `${formatCount(group.length, 'path')} broken at ${placeOf(point)}`,
    ...paths,
    ...(further > 0 ? [`  and ${formatCount(further, 'further path')}`] : []),
    ...counters.map(({ node, name, before, after }) => `  counter: ${node} ${name} ${before} → ${after}`),
  ];
  return { kind: 'text', text: lines.join('\n') };
}

function valueOf(each: CheckResult, place: Break | undefined) {
  const { check, result } = each;
  return {
    check: check.kind,
    family: check.family,
    path: checkName(check),
    address: check.target.address,
    passed: isPassed(each),
    ms: result.timeUs / 1000,
    error: isPassed(each) ? null : errorText(each),
    ends: place ? { ...place.point } : null,
    counters: (place?.counters ?? []).map(({ before, after, ...counter }) => {
      return { ...counter, before: String(before), after: String(after) };
    }),
  };
}

/** The report in JUnit’s XML form, as CI systems read it: a case for each node, path and untested part. */
export function junitOf({ nodes, results, breaks, skipped }: Outcome): string {
  const caseOf = (classname: string, name: string, time: number, content: string[]) =>
    element('testcase', { classname, name, time }, content);
  const failure = (message: string) => (message === '' ? [] : [element('failure', { message })]);
  const cases = [
    ...nodes.map(({ name, fault }) => caseOf('node', name, 0, failure(fault))),
    ...results.map(({ check, result }) => {
      const point = breaks.get(check)?.point;
      const name = `${checkName(check)} ${check.target.address}`;
      const content = failure(point ? `ends at ${placeOf(point)}` : '');
      return caseOf(`${check.kind}.IPv${check.family}`, name, result.timeUs / 1_000_000, content);
    }),
    ...skipped.map(({ name, reason }) => caseOf('skipped', name, 0, [element('skipped', { message: reason })])),
  ];
  const failures = cases.filter((each) => each.includes('<failure ')).length;
  const counts = { tests: cases.length, failures, skipped: skipped.length };
  const suite = element('testsuite', { name: 'podwirectl connectivity test', ...counts }, cases);
  return `<?xml version="1.0" encoding="UTF-8"?>\n${element('testsuites', counts, [suite])}\n`;
}

/** An element of XML. */
function element(name: string, attributes: Readonly<Record<string, string | number>>, content: readonly string[] = []) {
  const pairs = Object.entries(attributes).map(([key, value]) => {
    const escaped = String(value).replace(/[&<>"\n]/g, (character) => `&#${character.charCodeAt(0)};`);
    return ` ${key}="${escaped}"`;
  });
  return `<${name}${pairs.join('')}>${content.join('\n')}</${name}>`;
}
