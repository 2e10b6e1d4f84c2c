import {
  AuditServiceService,
  FindingKind,
  RemedyType,
  RepairOutcome,
  Severity,
  type AuditResponse,
  type AuditSummary,
  type Finding,
  type RepairResponse,
} from '@podwire/proto/podwire/ipam/v1/maintenance';
import { formatCount } from '@podwire/shared/words/format-count';

import { allPages, type Context } from '../clients/services.js';
import { DURATION_MS, oneOf, wholeNumber } from '../command-line/forms.js';
import { previewReport, YES } from '../command-line/options.js';
import { flag, option, type Input, type Option, type Verb } from '../command-line/verb.js';
import { DONE, PROBLEM_FOUND, sentence, type Report, type Section, type Table } from '../output/report.js';
import { wordOf } from '../output/words.js';

const kindWord = (kind: FindingKind): string => wordOf(FindingKind[kind], 'FINDING_KIND_');

const KINDS = Object.values(FindingKind).filter(
  (kind): kind is FindingKind =>
    typeof kind === 'number' && kind !== FindingKind.UNRECOGNIZED && kind !== FindingKind.FINDING_KIND_UNSPECIFIED,
);

const KIND: Option<FindingKind> = {
  name: '--kind',
  form: { ...oneOf(Object.fromEntries(KINDS.map((kind) => [kindWord(kind), kind]))), placeholder: 'KIND' },
  about: 'only findings of this kind, as the column KIND shows it (all)',
  repeated: true,
};
const GRACE = option(
  '--grace',
  DURATION_MS,
  'minimum age of the allocation of an unused address, 1m to 30d (15m). No effect without --release-unused',
);
const LIMIT = option(
  '--limit',
  wholeNumber('NUMBER', { min: 1, max: 10_000 }),
  'maximum number of findings to repair (1000). No effect without --repair',
);
const INFORMATION = flag('--information', 'also findings that are not errors');
const REPAIR = flag('--repair', 'repair the findings whose repair releases no address, once it is confirmed');
const DRY_RUN = flag('--dry-run', 'with --repair: only show what would be done');
const RELEASE_UNUSED = flag(
  '--release-unused',
  'with --repair: also release unused addresses, and remove endpoints that Calico left. Check first that their pods are gone',
);

export const audit: Verb = {
  name: 'audit',
  about: 'check the datastore for inconsistencies; --repair repairs them',
  details: 'May run at any time; no lock is needed. Exit code 4: there are findings that are not repaired.',
  options: [KIND, GRACE, LIMIT],
  flags: [INFORMATION, REPAIR, DRY_RUN, RELEASE_UNUSED, YES],
  examples: ['audit', 'audit --repair --dry-run', 'audit --repair --kind handle-counts-wrong'],
  run: (input, context) =>
    input.has(REPAIR)
      ? repair(input, context)
      : listFindings({ kinds: input.all(KIND), includeInformation: input.has(INFORMATION) }, context),
};

export async function listFindings(
  filter: { readonly kinds: FindingKind[]; readonly includeInformation: boolean },
  { ipam, json }: Context,
): Promise<Report> {
  const request = { ...filter, topNodes: 0 };
  const pages = await allPages((page) => ipam.call(AuditServiceService.audit, { ...page, ...request }));
  const findings = pages.flatMap((page) => page.findings);
  const answer: AuditResponse = { findings, nextPageToken: '', summary: pages.at(-1)?.summary };
  const wrong = findings.filter(isProblem);
  const repairable = wrong.filter(({ remedy }) => remedy !== RemedyType.REMEDY_TYPE_NONE);
  return {
    sections: [findingTable(findings), ...(answer.summary ? [summaryOf(answer.summary)] : [])],
    hints: repairable.length > 0 ? [`${repairable.length} can be repaired: podwirectl audit --repair --dry-run`] : [],
    data: () => json.of(AuditServiceService.audit, answer),
    exitCode: wrong.length > 0 ? PROBLEM_FOUND : DONE,
  };
}

const isProblem = ({ severity }: Finding): boolean => severity > Severity.SEVERITY_INFORMATION;

const objectsOf = ({ objects }: Finding): string => objects.map(({ type, name }) => `${type} ${name}`).join(', ');

function findingTable(findings: readonly Finding[]): Table {
  const remedies = { [RemedyType.REMEDY_TYPE_NONE]: 'none', [RemedyType.REMEDY_TYPE_SAFE]: '--repair' };
  const withRelease = '--repair --release-unused';
  return {
    kind: 'table',
    columns: ['SEVERITY', 'KIND', 'OBJECT', 'REMEDY', 'WHAT'],
    rows: findings.map((finding) => {
      const { severity, kind, remedy, explanation } = finding;
      const remedyText =
        remedy === RemedyType.REMEDY_TYPE_NONE || remedy === RemedyType.REMEDY_TYPE_SAFE
          ? remedies[remedy]
          : withRelease;
      const severityWord = wordOf(Severity[severity], 'SEVERITY_');
      return [severityWord, kindWord(kind), objectsOf(finding), remedyText, explanation];
    }),
    none: 'audit: no findings',
  };
}

function summaryOf(summary: AuditSummary): Section {
  const { findings, blocks, addressesInUse, addressesCooling, addressesLeased } = summary;
  const counts = findings.map(({ kind, count }) => `${count} × ${kindWord(kind)}`);
  const found = counts.length > 0 ? `; findings of all severities: ${counts.join(', ')}` : '';
  const checked = `${formatCount(blocks, 'block')}, ${formatCount(addressesInUse, 'address', 'addresses')} in use`;
  return sentence(`checked: ${checked}, ${addressesLeased} leased, ${addressesCooling} cooling${found}`);
}

async function repair(input: Input, context: Context): Promise<Report> {
  const isConfirmed = input.has(YES);
  const { report, isPossible } = await repairOnce(input, input.has(DRY_RUN) || !isConfirmed, context);
  if (isConfirmed || input.has(DRY_RUN) || !isPossible) return report;
  return previewReport(report, input.toCommandLine(), async () => (await repairOnce(input, false, context)).report);
}

/** @returns with `isPossible`: whether a dry run found something to repair */
async function repairOnce(input: Input, dryRun: boolean, { ipam, json }: Context) {
  const graceMs = input.get(GRACE);
  const answer = await ipam.call(AuditServiceService.repair, {
    dryRun,
    kinds: input.all(KIND),
    releaseUnused: input.has(RELEASE_UNUSED),
    graceSeconds: graceMs === undefined ? undefined : Math.round(graceMs / 1000),
    limit: input.get(LIMIT) ?? 0,
  });
  const report: Report = {
    sections: [resultTable(answer)],
    hints: answer.more ? ['more findings than the limit: run the command again, or raise --limit'] : [],
    data: () => json.of(AuditServiceService.repair, answer),
    exitCode: answer.more || answer.results.some(isUnresolved) ? PROBLEM_FOUND : DONE,
  };
  const isPossible = answer.results.some(({ outcome }) => outcome === RepairOutcome.REPAIR_OUTCOME_POSSIBLE);
  return { report, isPossible };
}

/** Whether the finding of this result is still present. */
function isUnresolved({ finding, outcome }: RepairResponse['results'][number]): boolean {
  const isSettled = outcome === RepairOutcome.REPAIR_OUTCOME_REPAIRED || outcome === RepairOutcome.REPAIR_OUTCOME_GONE;
  return !isSettled && finding !== undefined && isProblem(finding);
}

function resultTable({ results }: RepairResponse): Table {
  return {
    kind: 'table',
    columns: ['OUTCOME', 'KIND', 'OBJECT', 'WHAT'],
    rows: results.map(({ finding, outcome, explanation }) => [
      wordOf(RepairOutcome[outcome], 'REPAIR_OUTCOME_'),
      finding ? kindWord(finding.kind) : '',
      finding ? objectsOf(finding) : '',
      explanation,
    ]),
    none: 'audit: nothing to repair',
  };
}
