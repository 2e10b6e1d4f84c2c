import { Failure } from '@podwire/shared/failure/failure';

/** Why a command ends that the end of the process cuts off: the next process carries it out. */
export class Stopping extends Failure {
  /** @param rest - what cannot be left to the next process, where that is why the command is not done */
  constructor(rest?: string) {
    const reason = 'podwire-plugin is being stopped, and the next one carries it out; repeat it';
    super('CANCELLED', rest === undefined ? reason : `${reason}: ${rest}`);
  }
}
