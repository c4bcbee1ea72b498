// The pages by their names in addresses.

import { Chat } from "./chat.js";
import { Contacts } from "./contacts.js";
import { Dead } from "./dead.js";
import { DeadFiles, Files } from "./files.js";
import { Health } from "./health.js";
import { Job } from "./job.js";
import { Jobs, Schedules } from "./jobs.js";
import { Locks } from "./locks.js";
import { Mailbox } from "./mailbox.js";
import { Directories, Messages } from "./messages.js";
import { Overview } from "./overview.js";
import { Queue } from "./queue.js";
import { Rates } from "./rates.js";
import { Tasks } from "./tasks.js";
import { Workers } from "./workers.js";

export const PAGES = {
  overview: Overview, queue: Queue, job: Job, jobs: Jobs, tasks: Tasks, dead: Dead, schedules: Schedules, workers: Workers, locks: Locks, rates: Rates,
  messages: Messages, chat: Chat, mailbox: Mailbox, contacts: Contacts, files: Files, deadfiles: DeadFiles, directories: Directories, health: Health,
};
