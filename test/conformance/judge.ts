import { Bench } from './bench.js';
import { Hopeless, NotApplicable, type Case, type Occasion, type Verdict } from './case.js';
import { casesFor } from './cases/index.js';
import { parseJson } from './specification/json.js';
import { listedVersions } from './specification/version-answer.js';
import { judged } from './specification/versions.js';

export interface Trial extends Omit<Occasion, 'versions'> {
  /** Cases with one of these IDs, or one that begins with one of them and a dot; all where it is empty. */
  readonly only: readonly string[];
  /** ID of this process: part of the names of created objects. */
  readonly pid: number;
  /** Called with every verdict as soon as it is known. */
  readonly onVerdict?: (verdict: Verdict) => void;
}

/**
 * Runs every case against a plugin, one after another, each on a separate node.
 * @throws Error where namespaces cannot be created, or `only` names no case
 */
export async function judge(trial: Trial): Promise<readonly Verdict[]> {
  const occasion = { ...trial, versions: judged(await versionsOf(trial)) };
  const { only } = trial;
  const isWanted = (id: string) => only.length === 0 || only.some((name) => id === name || id.startsWith(`${name}.`));
  const cases = casesFor(occasion).filter(({ id }) => isWanted(id));
  if (cases.length === 0) throw new Error(`there is no case ${only.join(', ')} for this plugin`);
  const verdicts: Verdict[] = [];
  for (const asked of cases) {
    const verdict = await ask(asked, { occasion, pid: trial.pid });
    verdicts.push(verdict);
    trial.onVerdict?.(verdict);
  }
  return verdicts;
}

async function versionsOf(trial: Trial): Promise<readonly string[]> {
  const bench = new Bench({ ...trial, versions: [] }, trial.pid);
  try {
    const { stdout } = await bench.call('VERSION', { version: '1.0.0' });
    return listedVersions(parseJson(stdout));
  } finally {
    bench.dispose();
  }
}

async function ask(
  { ask: question, ...about }: Case,
  { occasion, pid }: { occasion: Occasion; pid: number },
): Promise<Verdict> {
  const startMs = performance.now();
  const bench = new Bench(occasion, pid);
  const verdict = (status: Verdict['status'], reasons: readonly string[]): Verdict => ({
    ...about,
    status,
    reasons,
    evidence: bench.evidence,
    durationMs: performance.now() - startMs,
  });
  try {
    await question(bench);
    return bench.faults.length === 0 ? verdict('pass', []) : verdict('fail', bench.faults);
  } catch (error) {
    if (error instanceof NotApplicable && bench.faults.length === 0) return verdict('not applicable', [error.message]);
    if (error instanceof Hopeless || error instanceof NotApplicable) return verdict('fail', bench.faults);
    return verdict('error', [...bench.faults, error instanceof Error ? error.message : String(error)]);
  } finally {
    await cleanUp(bench);
  }
}

/** A resident outlives its containers: its objects of a case are released before the namespaces end. */
async function cleanUp(bench: Bench): Promise<void> {
  if (bench.occasion.subject.isResident) await bench.takeBack();
  bench.dispose();
}
