//! Asking a running scheduler what it knows.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::van::{Endpoint, Inbox, Van, VanEvent};
use crate::wire::{Control, DataError, StatusReport};

/// Asks the scheduler at `scheduler` for its status.
///
/// # Errors
/// [`Error::Van`] when it cannot be reached, [`Error::Timeout`] when it does not answer.
///
/// # Cancel safety
/// Dropping the future gives up asking.
pub async fn ask_status(
    van: Arc<dyn Van>,
    mut inbox: Inbox,
    scheduler: &Endpoint,
    timeout: Duration,
) -> Result<StatusReport, Error> {
    let ask = async {
        let node = van.connect(scheduler).await?;
        let question = Control::StatusRequest.to_message().map_err(|DataError(text)| Error::Protocol(text))?;
        van.send(node, question).await?;
        loop {
            match inbox.recv().await {
                Some(VanEvent::Message { message, .. }) => {
                    if let Ok(Control::Status(report)) = Control::of_message(&message) {
                        return Ok(report);
                    }
                }
                Some(VanEvent::PeerDown { reason, .. }) => return Err(reason.into()),
                None => return Err(Error::Closed),
            }
        }
    };
    let result = tokio::time::timeout(timeout, ask).await.unwrap_or_else(|_| {
        let what = format!("the scheduler at {scheduler} to answer");
        Err(Error::Timeout { what, waited: timeout })
    });
    if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), van.close()).await {
        tracing::debug!(%error, "closing the van");
    }
    result
}
