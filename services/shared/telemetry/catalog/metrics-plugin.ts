import { FAILURE_CODES } from '../../failure/codes.js';
import { PHASES } from '../phases.js';
import { FINE_SECONDS, counter, gauge, histogram, type MetricCatalog } from './metric-entry.js';

const COMMANDS = ['ADD', 'DEL', 'CHECK', 'GC', 'STATUS', 'VERSION', 'unknown'];
const FAILURES = Object.keys(FAILURE_CODES);

/** Metrics of podwire-node's CNI commands. */
export const PLUGIN_METRICS = {
  'podwire.plugin.addresses': counter(
    '{allocation}',
    'Allocations of ADDs by source: the node (a lease, an earlier ADD), or podwire-ipam and why',
    {
      labels: {
        source: ['node', 'ipam'],
        reason: 'empty for the node; off, known, unavailable, exhausted, request, ipam-only',
      },
      when: 'after the first ADD',
    },
  ),
  'podwire.plugin.command.duration': histogram('s', 'Time of a command, from the start of the shim to the answer', {
    labels: { command: COMMANDS, result: 'success, or the name of a failure' },
    when: 'after the first command',
    buckets: FINE_SECONDS,
  }),
  'podwire.plugin.command.phase.duration': histogram('s', 'Time of a phase of a command; the phases add up', {
    labels: { command: COMMANDS, phase: PHASES, result: ['success', 'failure'] },
    when: 'after the first command',
    buckets: FINE_SECONDS,
  }),
  'podwire.plugin.commands.failed': counter('{command}', 'Failed ADD and DEL commands, by the name of the failure', {
    labels: { command: ['ADD', 'DEL'], reason: FAILURES },
  }),
  'podwire.plugin.commands.in_flight': gauge('{command}', 'Commands in flight', { labels: { command: COMMANDS } }),
  'podwire.plugin.commands.cut_off': counter('{command}', 'Commands that were cut off by reason', {
    labels: { command: COMMANDS, reason: ['deadline', 'caller', 'superseded', 'stop'] },
  }),
  'podwire.plugin.calls.refused': counter(
    '{call}',
    'Calls that were refused because the process had no file descriptor left',
  ),
  'podwire.plugin.ready': gauge('', '1 if STATUS succeeds, else 0', { when: 'while a runtime calls STATUS' }),
  'podwire.plugin.add_blocked': gauge('', '1 if an ADD would fail for the reason, else 0', {
    labels: { reason: ['addresses', 'ipam', 'ipam-plugin', 'dataplane', 'journal'] },
    when: 'while a runtime calls STATUS',
  }),
  'podwire.plugin.spool.depth': gauge(
    '{command}',
    'DELs that the shim wrote to disk while no process listened, and that are not done',
  ),
  'podwire.plugin.journal.entries': gauge('{entry}', 'Pending releases'),
  'podwire.plugin.journal.volatile_entries': gauge('{entry}', 'Pending releases that a restart would lose'),
  'podwire.plugin.journal.unreadable_entries': gauge(
    '{entry}',
    'Entries that this release cannot read and does not execute',
  ),
  'podwire.plugin.journal.oldest_age': gauge('s', 'Age of the oldest pending release'),
} as const satisfies MetricCatalog;
