// Runs scenarios on a cluster, inside the namespaces of test/support/isolated.mjs.
// usage: main.mjs SETTINGS (JSON: folder, programs, image, imageArchive, former, release, family, store, kubeProxy, e2e, only, keep)
import process from 'node:process';

import { Cluster } from './cluster.mjs';
import { e2eScenarios } from './e2e.mjs';
import { expectNothingLeaked, footprint, settledFootprint, wholeFootprint } from './leaks.mjs';
import { familiesOf } from './network.mjs';
import { scenariosOf } from './scenarios.mjs';

const seconds = (startMs) => ((Date.now() - startMs) / 1000).toFixed(1);

async function runScenario(scenario, index, context) {
  const { cluster, state } = context;
  const namespace = `scenario-${index}`;
  await cluster.namespace(namespace);
  let failure;
  try {
    await scenario.run({ cluster, namespace, untouched: state.untouched });
  } catch (error) {
    failure = error;
    cluster.diagnose(scenario.name);
  }
  // The failure is the scenario, not that its namespace stays.
  await cluster.removeNamespace(namespace).catch((error) => (failure ??= error));
  if (failure !== undefined) throw failure;
  if (index > 0 && scenario.leavesPodwire !== false) await expectNothingLeaked(cluster, state.before);
}

function table(rows) {
  const width = Math.max(...rows.map(({ name }) => name.length));
  const line = ({ name, result, took }) => `${name.padEnd(width)}  ${result.padEnd(6)}  ${took.padStart(6)} s`;
  return rows.map(line).join('\n');
}

/** A full run executes every command of the guides for its store. */
function guideRows({ podwire }) {
  return podwire.guides.map((guide) => {
    const missed = guide.missed();
    for (const command of missed) process.stdout.write(`${guide.file}: not executed: ${command}\n`);
    return { name: `commands of ${guide.file}`, result: missed.length === 0 ? 'ok' : 'FAILED', took: '0' };
  });
}

async function main({ only, keep, family, ...settings }) {
  const { store, former, release, kubeProxy, e2e } = settings;
  const families = familiesOf(family);
  const cgroup = process.env.ISOLATED_CGROUP.slice(1);
  const cluster = new Cluster({ ...settings, cgroup, families });
  const rows = [];
  const prefix = `[${family}, ${store}] `;
  const print = (text) => process.stdout.write(text.replaceAll(/^(?=.)/gm, prefix));
  const startMs = Date.now();
  await cluster.start();
  rows.push({ name: 'cluster start', result: 'ok', took: seconds(startMs) });
  print(`${table(rows.slice(-1))}\n`);
  const state = { untouched: wholeFootprint(cluster) };
  const ofCluster = scenariosOf({ family, store, former, release, kubeProxy });
  const isWanted = ({ name }) => only === undefined || new RegExp(only, 'i').test(name);
  const isNeeded = ({ name }) => ofCluster.some((other) => other.after === name && isWanted(other));
  const [first, ...further] = ofCluster;
  const scenarios = further.filter((scenario) => isWanted(scenario) || isNeeded(scenario));
  const selected = [first, ...(e2e === undefined ? scenarios : e2eScenarios(e2e.groups, only))];
  for (const [index, scenario] of selected.entries()) {
    const begunMs = Date.now();
    let failure;
    try {
      await runScenario(scenario, index, { cluster, state });
    } catch (error) {
      failure = error;
    }
    rows.push({ name: scenario.name, result: failure ? 'FAILED' : 'ok', took: seconds(begunMs) });
    print(`${table(rows.slice(-1))}\n`);
    if (failure) print(`${failure.message}\n`);
    if (failure && index === 0) break;
    // Leftovers of a failed scenario are not the next one's fault.
    if (index === 0 || failure) state.before = await settledFootprint(cluster).catch(() => footprint(cluster));
  }
  if (only === undefined && e2e === undefined) rows.push(...guideRows(cluster));
  const failed = rows.filter(({ result }) => result !== 'ok').length;
  print(`\n${table(rows)}\n${rows.length - failed} passed, ${failed} failed\n\n`);
  if (keep) {
    const { commandPrefix } = cluster.controlPlane;
    print(`kept until Ctrl-C. A shell: nsenter --all -t $(pgrep -nf lane/main.mjs) env ${commandPrefix} bash\n`);
    await new Promise((resolve) => process.once('SIGTERM', resolve));
  }
  return failed === 0 ? 0 : 1;
}

try {
  process.exit(await main(JSON.parse(process.argv[2])));
} catch (error) {
  process.stderr.write(`cluster: ${error.stack}\n`);
  process.exit(1);
}
