// Pings from within a network namespace: with the system's `ping`, or with an ICMP echo of our own where there is none.
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';

import { run } from './node.mjs';
import { ROOT } from './prepare.mjs';
import { hasProgram } from './programs.mjs';

/** How to ping on this system: a description, and `send({netns, address})` → {ok, text}. */
export function pinger(folder) {
  const own = !hasProgram('ping');
  const command = own ? [buildEcho(folder)] : ['ping', '-n', '-q', '-c', '1', '-W', '2'];
  return {
    description: own ? 'an ICMP echo of our own: `ping` is not installed' : 'the system’s ping',
    send({ netns, address }) {
      const enter = netns === undefined ? [] : ['nsenter', `--net=${netns}`];
      const [program, ...args] = [...enter, ...command, address];
      const { status, stdout, stderr } = spawnSync(program, args, { encoding: 'utf8' });
      return { ok: status === 0, text: status === 0 ? roundTrip(stdout) : (stdout + stderr).trim() };
    },
  };
}

function roundTrip(output) {
  const time = /= ([\d.]+)/.exec(output)?.[1];
  return time === undefined ? output.trim() : `${time} ms`;
}

function buildEcho(folder) {
  const program = join(folder, 'icmp-echo');
  run('g++', '-O1', '-Wall', '-o', program, join(ROOT, 'deploy', 'local', 'icmp-echo.cc'));
  return program;
}
