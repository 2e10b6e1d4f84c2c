import { NetlinkError } from './errors.js';
import { loadBinding } from './load.js';

/**
 * Whether the system's clock follows another clock (adjtimex(2)), as chrony, ntpd and systemd-timesyncd report it.
 * @throws NetlinkError (EPERM where a filter of system calls refuses it)
 */
export function clockSynchronized(): boolean {
  const answer = loadBinding().clockSynchronized();
  if (typeof answer === 'boolean') return answer;
  const { errno, text } = answer;
  throw new NetlinkError({ operation: 'clock.read', object: '', errno, kernelMessage: text ?? undefined });
}
